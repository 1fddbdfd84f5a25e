"""Names, labels and aliases of any bytes, which others gave, in what the drivers read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from placewire.agent.contract.entries import Address
from placewire.agent.contract.state import Ledger, ObservedState
from placewire.agent.drivers import command, interfaces, routes
from placewire.agent.drivers.interfaces import InterfaceView
from placewire.agent.drivers.outgoing_interfaces import name_of_link
from placewire.agent.drivers.routes import read_routes
from placewire.agent.interface_counters import parse_devices
from placewire.agent.reconcile.validate import refusals
from tests.agent.observed_states import FACTS, WAY
from tests.agent.states import desired_state

# The first word of a dump that `ip` shows, and the type of its one message (linux/rtnetlink.h).
_MAGIC, _NEW_ADDRESS = 0x47361222, 20


def attribute(kind: int, data: bytes) -> bytes:
    raw = struct.pack("=HH", 4 + len(data), kind) + data
    return raw + bytes(-len(raw) % 4)


def label_as_read(folder: Path, label: bytes) -> str:
    """What `ip` itself prints of an address with this label, as our drivers read it."""
    address = bytes([10, 7, 0, 1])
    body = struct.pack("=BBBBI", 2, 24, 0x80, 0, 1)
    body += attribute(1, address) + attribute(2, address) + attribute(3, label + b"\0")
    header = struct.pack("=IIHHII", _MAGIC, 16 + len(body), _NEW_ADDRESS, 0, 0, 0)
    (folder / "dump").write_bytes(header + body)
    printed = command.run(["sh", "-c", f"ip -j address showdump < {folder}/dump"])
    return str(command.parsed(printed)[0]["addr_info"][0]["label"])


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (b"lo:bob's", "lo:bob's"),
        (b'lo:"', 'lo:"'),
        (b"lo:\x01\x1b", r"lo:\x01\x1b"),
        (b"lo:\r\b", r"lo:\r\b"),
        (b"lo:\xff", r"lo:\xff"),
        ("lo:é".encode(), "lo:é"),
        (b"lo:\\\xff", r"lo:\\xff"),
    ],
)
def test_a_label_of_any_bytes_is_read(tmp_path: Path, label: bytes, expected: str) -> None:
    assert label_as_read(tmp_path, label) == expected


def test_an_escape_that_json_does_not_have_is_read() -> None:
    assert command.parsed(command.run(["printf", "%s", r'["bob\'s"]'])) == ["bob's"]


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> InterfaceView:
    """A server whose foreign interface, and whose NIC's label, have such bytes."""
    printed = {
        "ip -N -j -d address show": b'[{"ifindex": 1, "ifname":"e\xff","flags":["UP"],'
        b'"mtu":1500,"ifalias":"\x01"},'
        b'{"ifindex": 2, "ifname":"nic0","flags":["UP"],"mtu":1500,'
        b'"address":"02:00:00:00:00:01","addr_info":['
        b'{"family":"inet","local":"10.7.0.1","prefixlen":24,"scope":"0",'
        b'"label":"nic0:\xff a"}]}]',
        "ip -N -o -4 route show table all": b"10.1.0.0/16 dev nic0\xff proto 4 \n"
        b"10.2.0.0/16 dev nic0\x1c proto 4 \n"
        b"default proto 4 \\\tnexthop via 10.9.0.1 dev a weight 1 \n",
    }

    def run(words: list[str]) -> str:
        octal = "".join(f"\\{byte:03o}" for byte in printed.get(" ".join(words), b""))
        return command.run(["printf", octal])

    for module in (interfaces, routes):
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(interfaces, "read_disciplines", lambda _: {})
    return InterfaceView()


def test_what_is_read_of_a_strange_server_can_be_told_and_written(strange: InterfaceView) -> None:
    seen = ObservedState(nics=strange.nics({}, ()))
    assert ObservedState.model_validate_json(seen.model_dump_json()) == seen
    assert [nic.name for nic in seen.nics] == [r"e\xff", "nic0"]
    assert read_routes() == [
        r"10.1.0.0/16 dev nic0\xff proto 4",
        r"10.2.0.0/16 dev nic0\x1c proto 4",
        "default proto 4 nexthop via 10.9.0.1 dev a weight 1",
    ]
    assert seen.nics[1].routes == ()


def test_a_nic_whose_label_cannot_be_given_back_is_refused(strange: InterfaceView) -> None:
    wanted = desired_state(
        1, nics=("nic0",), flows=(), routes=(), rules=(),
        addresses=(Address(interface="pw-nic0", address="10.7.0.1/24"),),
    )  # fmt: skip
    seen = ObservedState(nics=strange.nics({}, ()))
    told = [r.sentence for r in refusals(wanted, seen, Ledger(), FACTS, WAY)]
    assert any(r"label nic0:\xff\x20a" in text for text in told), told


def test_a_name_that_is_no_utf_8_is_read_of_netlink_and_counters() -> None:
    body = struct.pack("=BxHiII", 0, 1, 5, 0, 0) + attribute(3, b"e\xff\0")
    message = ifinfmsg(struct.pack("=IHHII", 16 + len(body), 16, 0, 0, 0) + body)
    message.decode()

    class Netlink:
        def get_links(self, index: int) -> list[Any]:
            return [message] if index == 5 else []

    assert name_of_link(Netlink(), 5) == r"e\xff"
    text = "\n\n  e\x1c: 1 0 0 0 0 0 0 0 2\n nic0: 3 0 0 0 0 0 0 0 4\n"
    assert parse_devices(text)["nic0"].transmit_bytes == 4
