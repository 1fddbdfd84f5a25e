"""Says what agents could not undo, where, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from placewire.agent.contract.state import Refusal
from placewire.controller.agent_advice import restore_by_hand
from placewire.controller.errors import RestoreFailed


def not_restored(left: Mapping[str, Sequence[Refusal]]) -> RestoreFailed:
    """left: by server, why its agent could not undo everything."""
    return RestoreFailed(
        "; ".join(f"{one.where}: {one.what}" for some in left.values() for one in some),
        where=", ".join(left),
        remedy="; ".join([*remedies(left.values()), restore_by_hand(list(left))]),
    )


def remedies(of: Iterable[Sequence[Refusal]]) -> list[str]:
    """What the agents say is to be done, each once."""
    return list(dict.fromkeys(refusal.remedy for some in of for refusal in some))
