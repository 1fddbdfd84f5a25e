"""`controller recover PLAN`: finishes or undoes a change whose controller died."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from placewire.controller.commands.answers import EarlierRecovery, RecoverAnswer
from placewire.controller.commands.arguments import add_plan
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import confirmed, print_json
from placewire.controller.errors import JournalFailed, UsageError

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.recovery import Recovered
    from placewire.controller.story.tools import Tools

PURPOSE = "finish or undo a change whose controller died in the middle of it"
_WAIT_SECONDS = 5.0
_TOLD = {
    "finish": "the decision was to keep the change: every server keeps it",
    "undo": "the change is undone: every server is on its former state",
    "destroy": "the decision was to destroy: nothing of Placewire is left on",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask before changing servers")


def run(arguments: argparse.Namespace) -> int:
    async def work(plan: Plan, tools: Tools) -> int:
        with tools.journal.change_lock.exclusive():
            try:
                _require_journal(plan, tools)
            except JournalFailed as error:
                why = f"the journal cannot be read: {error.what}"
                document = await _by_leases(plan, tools, why, yes=arguments.yes)
            else:
                document = await _by_journal(plan, tools, yes=arguments.yes)
        if arguments.json:
            print_json(document)
        else:
            await _say_what_stands(plan, tools)
        return 0

    return in_session(arguments, work, needs_journal=False)


def _require_journal(plan: Plan, tools: Tools) -> None:
    """Raises JournalFailed where what was left open cannot be known."""
    from placewire.controller.story.open_decision import left_open

    journal = tools.journal
    if journal.lost is not None and not journal.decisions():
        raise JournalFailed(journal.lost)
    left_open(journal, plan.name)


async def _by_journal(plan: Plan, tools: Tools, *, yes: bool) -> RecoverAnswer:
    """Ends all that was left open, the latest first, and says so. Returns the document of `--json`:
    of the latest, with those of the others."""
    from placewire.controller.story.held import about_carried
    from placewire.controller.story.open_decision import about_recovery, left_open
    from placewire.controller.story.recovery import examine, recover

    # No rank is ended, and nobody asked to confirm, before the servers have said what they hold.
    examined = await examine(plan, tools.agents, tools.journal)
    if examined is None:
        tools.show.say("no change was left unfinished")
        return {"decision": None, "way": None, "by_lease": [], "earlier": []}

    def tell(done: Recovered) -> None:
        tools.show.say(_told(done))
        if done.others:
            tools.show.say(about_carried(done.others, plan.name))

    documents: dict[tuple[int, int], EarlierRecovery] = {}
    while examined is not None:
        found = examined.decision
        tools.show.say(about_recovery(found, over=examined.over))
        await _confirm_and_end_ranks(plan, tools, yes=yes)
        done = await recover(plan, tools.agents, tools.journal, tell)
        assert done is not None, "it was left open, and the lock lets nobody else end it"
        documents[found.id, len(found.phases)] = {
            "decision": found.id,
            "way": done.way,
            "by_lease": [*done.by_lease],
        }
        left = left_open(tools.journal, plan.name)
        # One that comes again as it was is ended, but the journal could not take that. A destroy of
        # some servers leaves the phase before it, which may be open, too.
        ended = left is None or (left.id, len(left.phases)) in documents
        examined = None if ended else await examine(plan, tools.agents, tools.journal)
    latest, *earlier = documents.values()
    return {
        "decision": latest["decision"],
        "way": latest["way"],
        "by_lease": latest["by_lease"],
        "earlier": earlier,
    }


def _told(done: Recovered) -> str:
    where = f" {', '.join(done.servers)}" if done.way == "destroy" else ""
    later = done.by_lease
    when = f", {', '.join(later)} once the lease there ends" if later else ""
    return f"decision {done.decision.id}: {_TOLD[done.way]}{where}{when}"


async def _by_leases(plan: Plan, tools: Tools, why: str, *, yes: bool) -> RecoverAnswer:
    """Returns the document of `--json`, which has the servers that were restored."""
    from placewire.controller.story.recovery import recover_by_leases

    tools.show.say(f"{why}; recovery will undo what servers hold under a lease")
    # No rank is ended before it is known that every server can be asked.
    await tools.agents.wait_for([server.name for server in plan.cluster.servers], _WAIT_SECONDS)
    await _confirm_and_end_ranks(plan, tools, yes=yes)
    restored = await recover_by_leases(plan, tools.agents, why)
    said = "no server holds a change under a lease"
    if restored:
        said = f"the change is undone on {', '.join(restored)}"
    tools.show.say(said)
    return {"decision": None, "way": "undo", "by_lease": [], "restored": [*restored]}


async def _confirm_and_end_ranks(plan: Plan, tools: Tools, *, yes: bool) -> None:
    from placewire.controller.story.left_ranks import end_left_ranks_or_say

    if not await confirmed(yes=yes):
        raise UsageError("not confirmed; nothing was changed")
    await end_left_ranks_or_say(plan.name, tools)


async def _say_what_stands(plan: Plan, tools: Tools) -> None:
    """Says what every server has in force now, which may be what was kept before the change."""
    from placewire.controller.change.in_force import observed
    from placewire.controller.records.decision_in_force import decision_in_force

    try:
        decisions = tools.journal.decisions()
    except JournalFailed:
        decisions = ()
    observations = await observed(tools.agents, plan)
    leases = {server: one.lease for server, one in observations.items() if one is not None}
    tools.show.say(decision_in_force(plan.name, decisions, leases).why)
    for server, lease in leases.items():
        if lease.detail:  # As what an undo left otherwise than before.
            tools.show.say(f"{server}: {lease.detail}")
