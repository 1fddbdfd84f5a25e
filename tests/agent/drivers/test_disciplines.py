"""Queueing disciplines of any kind, which others may have set on any interface."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from placewire.agent.drivers import command
from placewire.agent.drivers.disciplines import Discipline, of_messages, read_disciplines
from placewire.agent.drivers.interfaces import InterfaceView
from tests.agent import keeping
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state

_NEW_QDISC, _KIND, _OPTIONS = 36, 1, 2
_ROOT, _INGRESS = 0xFFFFFFFF, 0xFFFFFFF1


def told(kind: str, handle: int, parent: int, options: bytes, index: int = 5) -> Any:
    """What pyroute2 makes of the kernel's message about a discipline."""
    body = struct.pack("=BxxxiIII", 0, index, handle, parent, 1)
    for number, data in ((_KIND, kind.encode() + b"\0"), (_OPTIONS, options)):
        attribute = struct.pack("=HH", 4 + len(data), number) + data
        body += attribute + bytes(-len(attribute) % 4)
    message = tcmsg(struct.pack("=IHHII", 16 + len(body), _NEW_QDISC, 0, 0, 0) + body)
    message.decode()
    return message


@pytest.mark.parametrize("options", [b"", b"\1", b"\1\0", b"\xff" * 60], ids=len)
@pytest.mark.parametrize("kind", ["hfsc", "multiq", "htb", "prio", "cake", "bpf", "of-tomorrow"])
def test_a_discipline_is_read_whatever_its_options(kind: str, options: bytes) -> None:
    found = of_messages([told(kind, 0x80010000, _ROOT, options)], {5: "eth9"})
    assert found == {"eth9": (Discipline(kind, "8001:", ""),)}


def test_those_that_the_kernel_attaches_are_left_out_and_places_are_named_as_tc_does() -> None:
    messages = [
        told("noqueue", 0, _ROOT, b""),
        told("htb", 0x10000, _ROOT, b""),
        told("sfq", 0x100000, 0x10003, b""),
        told("clsact", 0xFFFF0000, _INGRESS, b""),
        told("hfsc", 0x50000, _ROOT, b"", index=6),
    ]
    assert of_messages(messages, {5: "nic0"}) == {
        "nic0": (
            Discipline("htb", "1:", ""),
            Discipline("sfq", "10:", "1:3"),
            Discipline("clsact", "ffff:", "ffff:fff1"),
        )
    }


def look(folder: str) -> tuple[list[str], dict[str, tuple[Discipline, ...]]]:
    """folder: of a `tc` that prints what iproute2 6.1 prints while there is an hfsc."""
    tool = command.run

    def run(words: list[str], stdin: str | None = None) -> str:
        return tool([f"{folder}/tc", *words[1:]] if words[0] == "tc" else words, stdin)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("placewire.agent.drivers.interfaces.run", run)
        view = InterfaceView()
    disciplines = read_disciplines(view.names_by_index)
    assert all(view.disciplines(name) == of for name, of in disciplines.items())
    return sorted(view.names), disciplines


HFSC = (
    '[{"kind":"hfsc","handle":"5:","dev":"mgmt","root":true,"refcnt":2,"options":{default 0x1 }}]'
)


@pytest.mark.network
def test_what_tc_prints_of_somebodys_discipline_stops_no_look(
    server: ServerUnderTest, tmp_path: Path
) -> None:
    """This kernel may have no hfsc: what `tc` says of one is given in its place."""
    (tmp_path / "tc").write_text(f"#!/bin/sh\necho '{HFSC}'\n")
    (tmp_path / "tc").chmod(0o755)
    server.sh("tc qdisc add dev mgmt root handle 8001: tbf rate 90mbit burst 20kb latency 50ms; "
              "tc qdisc add dev mgmt clsact", check=False)  # fmt: skip
    assert server.inside(keeping.stage, server.config, desired_state()).succeeded
    names, found = server.inside(look, str(tmp_path))
    assert names == ["lo", "mgmt", "nic0", "nic1", "ovs-netdev", "pw-nic0", "pw-nic1"]
    shown = server.sh("tc qdisc show")
    assert Discipline("htb", "1:", "") in found["nic0"] and "qdisc htb 1: dev nic0 root" in shown
    of_mgmt = {(one.kind, one.handle, one.parent) for one in found.get("mgmt", ())}
    assert ("clsact", "ffff:", "ffff:fff1") in of_mgmt
    assert ("tbf", "8001:", "") in of_mgmt or "tbf" not in shown
