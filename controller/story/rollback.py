"""Rolls back to a network that was kept before.

The desired states of an earlier decision are staged under new generations, measured and kept on all
servers, or on none. Only a decision that was kept can be chosen: one that was restored was for one
job alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pydantic import ValidationError

from placewire.agent.contract.state import DesiredState
from placewire.controller.change.change import NetworkChange, preview
from placewire.controller.change.generations import with_next_generations
from placewire.controller.change.in_force import allocation_of
from placewire.controller.compile.as_decided import plan_as_decided
from placewire.controller.compile.transfers import promises
from placewire.controller.errors import UsageError
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Decision, Journal
from placewire.controller.story.delivery import delivered
from placewire.controller.story.held import answered_leases
from placewire.controller.story.left_ranks import end_left_ranks
from placewire.controller.story.tools import Tools
from placewire.controller.story.what_is_known import known_by, require_known


def choose(journal: Journal, plan: Plan, number: int | None) -> Decision:
    """number: as `controller history` shows it; None: the latest kept decision with another plan
    digest than the one in force, if one is. Raises UsageError."""
    decisions = [one for one in journal.decisions() if one.plan_name == plan.name]
    kept = [one for one in decisions if one.was_kept]
    if number is None:
        held = journal.in_force(plan.name)
        latest = max((held.get(server.name, 0) for server in plan.cluster.servers), default=0)
        present = {one.plan_digest for one in decisions if one.id == latest}
        others = [one for one in kept if one.plan_digest not in present]
        if not others:
            raise UsageError(
                f"no other network of plan {plan.name!r} was kept before",
                remedy="`network.on_exit: keep` keeps a network; `controller destroy` removes it",
            )
        return others[-1]
    if found := [one for one in kept if one.id == number]:
        return found[0]
    raise UsageError(
        f"decision {number} is none of plan {plan.name!r} that was kept",
        remedy="`controller history PLAN` lists decisions with their numbers",
    )


def recorded_states(journal: Journal, decision: int) -> dict[str, DesiredState]:
    """The desired states, by server, of a decision that was to be kept. Raises UsageError where
    they cannot be read any more."""
    try:
        return {
            server: DesiredState.model_validate_json(text)
            for server, text in journal.states(decision).items()
        }
    except ValidationError as error:
        raise UsageError(
            f"decision {decision} was made by another version: {error.errors()[0]['msg']}",
            remedy="apply the plan anew",
        ) from error


def states_in_force(journal: Journal, plan_name: str, plan_digest: str) -> dict[str, DesiredState]:
    """The recorded states of the latest decision with this digest; empty where none was to be kept.
    Raises UsageError as recorded_states does."""
    for one in reversed(journal.decisions()):
        same = (one.plan_name, one.plan_digest) == (plan_name, plan_digest)
        if same and (states := recorded_states(journal, one.id)):
            return states
    return {}


def states_of(journal: Journal, chosen: Decision, plan: Plan) -> dict[str, DesiredState]:
    """The recorded states of a decision for all servers of the plan. Raises UsageError where they
    cannot be read any more, or are for other servers."""
    states = recorded_states(journal, chosen.id)
    servers = {server.name for server in plan.cluster.servers}
    if set(states) != servers:
        raise UsageError(
            f"decision {chosen.id} was for {', '.join(sorted(states)) or 'no server'}, the plan is "
            f"for {', '.join(sorted(servers))}",
            remedy="run `controller destroy` with the present plan, then apply the former one",
        )
    return states


async def roll_back(
    plan: Plan,
    number: int | None,
    tools: Tools,
    confirm: Callable[[], Awaitable[bool]],
    *,
    measured: bool = True,
) -> Mapping[str, int]:
    """Returns the number of changes by server. Raises as `apply` does, with everything restored;
    JournalFailed where no number is given and the journal does not know what servers hold."""
    journal, show = tools.journal, tools.show
    chosen = choose(journal, plan, number)
    former = states_of(journal, chosen, plan)
    allocation, then, promised = allocation_of(journal, plan.name, chosen.plan_digest), plan, None
    if measured and allocation is not None:
        then = plan_as_decided(plan, allocation, former)
        promised = promises(then, allocation)
    with tools.stage("agents"):
        await tools.agents.wait_for(list(former), timeout_seconds=10)
    if number is None:  # What was in force before is known only where what is in force is.
        leases = await answered_leases(tools.agents, list(former))
        require_known(plan.name, known_by(journal, plan.name), leases, None)
    desired = with_next_generations(journal, tools.agents, former)
    show.say(f"back to decision {chosen.id}, {chosen.plan_digest[:12]}")
    with tools.stage("preview"):
        show.changes(await preview(tools.agents, desired))
    if not await confirm():
        raise UsageError("not confirmed; nothing was changed")
    await end_left_ranks(plan.name, tools, for_job=False)
    async with NetworkChange(tools.agents, journal, desired) as change:
        with tools.stage("stage"):
            await change.stage()
        if allocation is None:
            show.say("the journal has no promised rates any more: the network is read back only")
        else:
            await delivered(tools, then, promised, change)
        await change.commit()
        await change.keep()
    return change.changes
