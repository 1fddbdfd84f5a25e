"""What the kernel answers unexpectedly is an EffectError, and stops no more than it must."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.entries import Address, Rule
from placewire.agent.contract.state import TakenOver
from placewire.agent.drivers import interfaces, nic_moves, ovsdb_connection
from placewire.agent.drivers.server import Server
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.steps import EntryStep, NicStep, Step

CONFIG = AgentConfig(
    server="s1", controller_url="https://x", certificate_file="", key_file="", authority_file="",
    state_dir="", ovsdb_remote="unix:/nowhere", datapath="netdev",
)  # fmt: skip


@pytest.mark.parametrize("error", [NetlinkError(errno.EBUSY, "busy"), OSError(errno.ENOBUFS, "")])
def test_a_hello_fails_in_order_where_disciplines_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def read(_: object) -> Any:
        raise error

    monkeypatch.setattr(interfaces, "read_disciplines", read)
    nowhere = AgentConfig(
        server="s1", controller_url="https://x", certificate_file="", key_file="",
        authority_file="", state_dir="", ovsdb_remote=f"unix:{tmp_path}/db.sock", datapath="netdev",
    )  # fmt: skip
    with pytest.raises(EffectError, match="reading the server's interfaces"):
        Server(nowhere).observe_what_answers()


def test_a_database_that_never_answers_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ovsdb_connection, "TIMEOUT_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/db.sock")
        listening.listen()
        with (
            pytest.raises(EffectError, match="does not say its schema"),
            ovsdb_connection.connected(f"unix:{tmp_path}/db.sock"),
        ):
            pass


def test_a_nic_whose_move_fails_keeps_no_other_one_from_moving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[list[str]] = []

    def view() -> Any:
        monkeypatch.setattr(nic_moves, "InterfaceView", interfaces.InterfaceView)
        raise NetlinkError(errno.EBUSY, "busy")

    monkeypatch.setattr(nic_moves, "InterfaceView", view)
    monkeypatch.setattr(nic_moves, "run", moved.append)
    monkeypatch.setattr(nic_moves, "announce", lambda *_: None)
    monkeypatch.setattr(nic_moves, "_remove_left_queues", lambda _: [])
    held = TakenOver(nic="lo", addresses=())
    first = NicStep(held=held.model_copy(update={"nic": "nic0"}), bridge="", direction="back")
    with pytest.raises(EffectError, match="moving what NIC nic0 holds: NetlinkError"):
        nic_moves.move_nics([first, NicStep(held=held, bridge="", direction="back")])
    assert ["ip", "link", "set", "lo", "up"] in moved


def test_a_route_that_cannot_be_put_back_on_a_bridge_keeps_nothing_else_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody may have taken the address away that is its source."""
    applied: list[str] = []
    failing: list[str] = []

    def apply_batch(_: object, batch: list[Step], __: str) -> None:
        applied.append(batch[0].as_change().collection)
        if batch[0].as_change().collection in failing:
            raise EffectError("Invalid prefsrc address.")

    monkeypatch.setattr(Server, "_apply_batch", apply_batch)
    here = Server(CONFIG)
    rule, address = (
        Rule(priority=18000, source="10.7.0.1/32", table=8000),
        Address(interface="pw-nic0", address="10.7.0.1/24"),
    )
    move = NicStep(
        held=TakenOver(nic="nic0", addresses=()), bridge="pw-nic0", direction="to bridge"
    )
    steps = (EntryStep(None, address), move, EntryStep(None, rule))
    for what, done in (("nics", ["addresses", "nics", "rules"]), ("addresses", ["addresses"])):
        applied.clear()
        failing[:] = [what]
        with pytest.raises(EffectError, match="prefsrc"):
            here.apply(steps, "plan")
        assert applied == done
