"""What agents could not undo is told with its place, and with what they say is to be done."""

from __future__ import annotations

from placewire.agent.contract.state import refuse
from placewire.controller.change.not_restored import not_restored


def test_every_place_and_every_remedy_is_told() -> None:
    owed = refuse("server s1, NIC nic0", "is away: it is owed address 10.7.0.1/24", "bring it back")
    full = refuse("server s2", "no space is left on its disk", "make room")
    error = not_restored({"s1": (owed,), "s2": (full, full)})
    assert error.exit_code == 8 and error.where == "s1, s2"
    assert "server s1, NIC nic0: is away" in error.what and "server s2: no space" in error.what
    assert error.remedy.startswith("bring it back; make room; on s1, s2")
    assert "agent restore" in error.remedy
