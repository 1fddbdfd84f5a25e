"""Whether ovs-vswitchd has NICs open, by what `ip` and `ss` say of them."""

from __future__ import annotations

import json

import pytest

from placewire.agent.contract.entries import Bridge
from placewire.agent.drivers import interfaces, packet_sockets, ports
from placewire.agent.drivers.packet_sockets import PacketSockets

SOCKETS = """\
p_raw 0 0 *:nic0 * bpf filter (4):  0x28 0 0 4294963204, 0x15 0 1 4, 0x06 0 0 0, \
0x06 0 0 65535,
p_raw 0 0 *:nic1 * bpf filter (2):  0x28 0 0 12, 0x06 0 0 4294967295,
p_dgr 0 0 [35020]:nic2 *
"""
LINKS = [{"ifindex": 5 + n, "ifname": f"nic{n}", "flags": ["UP"]} for n in range(3)]


class View:
    names = tuple(str(link["ifname"]) for link in LINKS)

    def link(self, nic: str) -> dict[str, object]:
        return LINKS[self.names.index(nic)]


def said_by(monkeypatch: pytest.MonkeyPatch, sockets: str) -> PacketSockets:
    monkeypatch.setattr(packet_sockets, "run", lambda _: sockets)
    found = PacketSockets()
    vars(found)["heard"] = frozenset({5, 6, 7})
    return found


def promiscuous_now(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(interfaces, "run", lambda _: json.dumps([{"flags": ["UP", *flags]}]))


def test_a_nic_that_the_switch_hears_is_open_though_it_is_not_promiscuous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    promiscuous_now(monkeypatch)
    sockets = said_by(monkeypatch, SOCKETS)
    opened = [ports._is_opened(link, sockets) for link in LINKS]
    assert opened == [True, False, False], "others listen, too"
    bridges = [Bridge(name=f"pw-{nic}", nic=nic, datapath="netdev") for nic in View.names]
    missing = [ports.misses_frames(bridge, View(), sockets) for bridge in bridges]  # type: ignore[arg-type]
    assert missing == [True, False, False]
    system = bridges[0].model_copy(update={"datapath": "system"})
    assert not ports.misses_frames(system, View(), sockets)  # type: ignore[arg-type]
    promiscuous_now(monkeypatch, "PROMISC")
    assert not ports.misses_frames(bridges[0], View(), sockets), "it was just being opened"  # type: ignore[arg-type]
    nothing = said_by(monkeypatch, "")
    assert not ports._is_opened(LINKS[0], nothing), "where nothing is known, it is opened anew"


def test_a_promiscuous_nic_is_open_where_somebody_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = said_by(monkeypatch, "")
    there, moved_back = ({"ifindex": index, "flags": ["PROMISC"]} for index in (6, 9))
    assert ports._is_opened(there, sockets) and not ports._is_opened(moved_back, sockets)
    vars(sockets)["heard"] = None
    assert ports._is_opened(moved_back, sockets), "this kernel does not say"
