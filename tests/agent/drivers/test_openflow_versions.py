"""A bridge that somebody does not let speak OpenFlow 1.3."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from placewire.agent.contract.entries import COOKIE, Flow
from placewire.agent.drivers import command, openflow
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.steps import EntryStep

_HELLO_1_0 = bytes([1, 0, 0, 8, 0, 0, 0, 1])
QUEUED = Flow(bridge="pw-nic0", destination="10.7.0.2", queue_id=2)
SHORT = Flow(bridge="pw-nic0", destination=None, queue_id=1)
DUMPED = f"""\
 cookie={COOKIE:#x}, reset_counts priority=20480,ip,in_port=LOCAL,nw_dst=10.7.0.2 \
actions=set_queue:2,NORMAL
 reset_counts priority=0 actions=NORMAL
 cookie=0x7, reset_counts tcp actions=drop
"""


class Switch:
    """A switch as `ovs-ofctl` speaks to it; answers all versions but 1.3."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], str]] = []

    def __call__(self, words: list[str], stdin: str | None = None) -> str:
        if "OpenFlow13" in words:
            raise EffectError("unix:…: version negotiation failed (we support version 0x04, peer …")
        self.asked.append((words, stdin or ""))
        return DUMPED if "dump-flows" in words else ""


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Switch:
    found = Switch()
    monkeypatch.setattr(openflow, "run", found)
    return found


def test_the_words_are_those_of_ovs_ofctl(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "pw-nic0.mgmt"))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(_HELLO_1_0)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(EffectError, match=openflow._NOT_ALLOWED):
            command.run(["ovs-ofctl", *openflow._PROTOCOL, "dump-flows",
                         f"unix:{tmp_path}/pw-nic0.mgmt"])  # fmt: skip
        thread.join(5)


def test_its_flows_are_read(switch: Switch) -> None:
    ours, foreign, _ = openflow.read_flows("/run", ["pw-nic0"])
    assert ours == [QUEUED]
    (told,) = foreign
    assert told.text == "flow cookie=0x7, tcp actions=drop"
    assert "OpenFlow13" not in told.remedy and "OpenFlow10" in told.remedy


def test_its_flows_are_removed_and_none_is_added(switch: Switch) -> None:
    openflow.change_flows("/run", [EntryStep(QUEUED, None), EntryStep(SHORT, None)])
    ((words, stdin),) = switch.asked
    assert words[-4:] == ["--strict", "del-flows", "unix:/run/pw-nic0.mgmt", "-"]
    assert stdin.count(f"cookie={COOKIE:#x}/") == 3, "one of the queue, two for short packets"
    for line in stdin.splitlines():
        _, _, match = line.partition(",")
        parsed = command.run(["ovs-ofctl", "--strict", "parse-flow", f"{match},actions=drop"])
        usable = parsed.splitlines()[0]
        assert "any" in usable or "NXM" in usable, "OpenFlow 1.0 can name it"
    with pytest.raises(EffectError, match="ovs-vsctl clear bridge pw-nic0 protocols"):
        openflow.change_flows("/run", [EntryStep(None, QUEUED)])
    assert len(switch.asked) == 1, "nothing was changed"
