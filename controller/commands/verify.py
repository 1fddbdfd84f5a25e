"""`controller verify PLAN`: reads back what a plan keeps in force, and measures its rates again; or
takes snapshots of its servers, and compares them with earlier ones."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_no_measurement, add_plan, require_new
from placewire.controller.commands.session import in_session, with_launcher
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import (
    AgentUnreachable,
    NotAsInSnapshot,
    UsageError,
    VerificationFailed,
)
from placewire.controller.few_names import counts_in_words

if TYPE_CHECKING:
    from placewire.agent.contract.measurement import LinkMeasurement
    from placewire.agent.contract.messages import Observation, ReadBackResult
    from placewire.controller.launch.launcher import Launcher
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "read back what a plan keeps in force, and measure its rates again; changes nothing"
_NOTHING_CHANGED = "nothing was changed; `controller apply` makes it as the plan says"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_no_measurement(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--snapshot", type=Path, metavar="FILE",
        help="only write there what each server's network is now, by the system's own tools, which "
        "run in the lab or over SSH (`launch`) without any agent",
    )  # fmt: skip
    instead.add_argument(
        "--against-snapshot", type=Path, metavar="FILE",
        help="only say what differs now from that file; ends with 6 where something does",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    if arguments.snapshot is not None:
        return _write_snapshot(arguments, arguments.snapshot)
    if arguments.against_snapshot is not None:
        return _compare_with_snapshot(arguments, arguments.against_snapshot)

    async def verify(plan: Plan, tools: Tools) -> int:
        from placewire.controller.change.in_force import observed, read_back

        with tools.journal.change_lock.exclusive():
            observations = await observed(tools.agents, plan)
            digest = _decision(plan, observations)
            results = await read_back(tools.agents, observations)
            if not arguments.json:
                tools.show.status(observations, results)
            _require_as_decided(observations, results)
            links: tuple[LinkMeasurement, ...] = ()
            if not arguments.no_measurement:
                links = await _measured(plan, tools, digest)
        if arguments.json:
            print_json({"decision": digest, "links": [link.model_dump() for link in links]})
        return 0

    return in_session(arguments, verify, makes_journal=False)


def _write_snapshot(arguments: argparse.Namespace, file: Path) -> int:
    require_new(file)

    async def work(plan: Plan, launcher: Launcher) -> int:
        from placewire.controller.show.story import Show
        from placewire.controller.verify.snapshots import take_all, write

        write(file, plan.name, await take_all(plan, launcher))
        if arguments.json:
            print_json({"snapshot": str(file)})
        else:
            Show().say(f"{file}: the network of {len(plan.cluster.servers)} servers as it is now")
        return 0

    return with_launcher(arguments, work)


def _compare_with_snapshot(arguments: argparse.Namespace, file: Path) -> int:
    from placewire.controller.verify.snapshots import differing, read, take_all

    before = read(file)

    async def work(plan: Plan, launcher: Launcher) -> int:
        from placewire.controller.show.story import Show

        found = differing(file, before, await take_all(plan, launcher))
        show = Show(to_error=arguments.json)
        for server, sentences in found.items():
            for sentence in sentences:
                show.say(f"{server}: {sentence}")
        if found:
            raise NotAsInSnapshot(str(file), found)
        if arguments.json:
            print_json({"differences": {}})
        else:
            show.say(f"nothing differs from {file}")
        return 0

    return with_launcher(arguments, work)


def _decision(plan: Plan, observations: Mapping[str, Observation | None]) -> str:
    """The digest of the decision that every server has in force. Raises UsageError where a server
    has none of this plan, VerificationFailed where the servers' decisions differ."""
    if missing := [server for server, answer in observations.items() if answer is None]:
        raise AgentUnreachable(missing)
    leases = {s: answer.lease for s, answer in observations.items() if answer is not None}
    others = [s for s, one in leases.items() if not one.is_in_force or one.plan_name != plan.name]
    if others:
        raise UsageError(
            f"nothing of plan {plan.name!r} is in force there",
            where=", ".join(others),
            remedy="`controller apply --network-only` on a plan with `on_exit: keep` puts the "
            "network in force and keeps it",
        )
    digests = {lease.plan_digest or "" for lease in leases.values()}
    if len(digests) > 1:
        raise VerificationFailed(
            f"the servers are on {len(digests)} different decisions",
            where=", ".join(leases),
            remedy=_NOTHING_CHANGED,
        )
    return digests.pop()


def _require_as_decided(
    observations: Mapping[str, Observation | None], results: Mapping[str, ReadBackResult]
) -> None:
    if silent := [server for server in observations if server not in results]:
        raise AgentUnreachable(silent)
    counts = {server: len(one.deviations) + len(one.problems) for server, one in results.items()}
    if wrong := {server: count for server, count in counts.items() if count}:
        what = f"what is read back differs from what was decided: {counts_in_words(wrong)}"
        raise VerificationFailed(what, where=", ".join(wrong), remedy=_NOTHING_CHANGED)


async def _measured(plan: Plan, tools: Tools, digest: str) -> tuple[LinkMeasurement, ...]:
    from placewire.controller.change.in_force import allocation_of
    from placewire.controller.compile.as_decided import plan_as_decided
    from placewire.controller.compile.transfers import promises
    from placewire.controller.story.delivery import measure_until_sure
    from placewire.controller.story.rollback import states_in_force
    from placewire.controller.verify.bandwidth_check import require_delivered

    allocation = allocation_of(tools.journal, plan.name, digest)
    if allocation is None:
        tools.show.say("the promised rates are no longer known here: read back, not measured")
        return ()
    then = plan_as_decided(plan, allocation, states_in_force(tools.journal, plan.name, digest))
    promised = promises(then, allocation)
    with tools.stage("measure"):
        links = await measure_until_sure(tools, then, promised)
    require_delivered(links, now="nothing was changed")
    return links
