"""Makes a refusal in one line."""

from __future__ import annotations

from placewire.agent.contract.state import Refusal


def refuse(where: str, what: str, remedy: str) -> Refusal:
    return Refusal(what=what, where=where, remedy=remedy)
