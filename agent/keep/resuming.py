"""Makes the state in force whole again after the agent's start: a reboot keeps bridges in the
database, but loses addresses, routes and filters."""

from __future__ import annotations

from placewire.agent.contract.state import DesiredState
from placewire.agent.keep.applying import apply_whole
from placewire.agent.keep.context import Context
from placewire.agent.keep.outcome import Outcome, changes_of, text_of


def make_whole(context: Context, desired: DesiredState) -> Outcome:
    context.retry.begin()
    try:
        steps = apply_whole(context, desired, context.memory.kept.ledger, "resume")
    except Exception as error:
        context.retry.failed(error)
        return Outcome(refusals=(context.failure(text_of(error)),))
    return Outcome(changes_of(steps), read_back=True)
