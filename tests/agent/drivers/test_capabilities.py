"""What an agent says that its server can do, and what it refuses for lack of it."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from placewire.agent.contract.capabilities import (
    CLASSFUL_QDISC,
    CLASSIFIER,
    Capabilities,
    TrafficControl,
)
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import DesiredState, Ledger, ObservedState
from placewire.agent.drivers import abilities, known_devices
from placewire.agent.drivers import server as server_driver
from placewire.agent.drivers.devices import Found, processor
from placewire.agent.drivers.known_devices import KnownDevices
from placewire.agent.drivers.server import Server
from placewire.agent.reconcile.unmarkable import Unmarked
from placewire.agent.reconcile.validate import refusals
from tests.agent.observed_states import BARE, FACTS, WAY, nic
from tests.agent.server_under_test import ServerUnderTest
from tests.agent.states import desired_state

EVERYTHING = TrafficControl(known=True, qdiscs=(CLASSFUL_QDISC,), classifiers=(CLASSIFIER,))
NO_HTB = EVERYTHING.model_copy(update={"qdiscs": ("sfq",)})
NO_U32 = EVERYTHING.model_copy(update={"classifiers": ("flower",)})


def able(datapath: str, kernel: TrafficControl = EVERYTHING) -> Capabilities:
    return Capabilities.model_validate(
        {
            "datapath": datapath, "set_queue_honoured": datapath == "system", "nics": (),
            "open_vswitch_version": "3.1.0", "kernel_version": "6.1", "python_version": "3.11",
            "traffic_control": kernel,
        }
    )  # fmt: skip


def refused(
    kernel: TrafficControl = EVERYTHING,
    observed: ObservedState = BARE,
    desired: DesiredState | None = None,
) -> list[tuple[str, str]]:
    """(where, what) of each refusal."""
    facts = FACTS.__class__(**{**FACTS.__dict__, "traffic_control": kernel})
    return [
        (r.where, r.what)
        for r in refusals(desired or desired_state(), observed, Ledger(), facts, WAY)
    ]


@pytest.mark.parametrize(
    ("capabilities", "steering"),
    [
        (able("system"), "set_queue"),
        (able("system", NO_U32), "set_queue"),
        (able("netdev"), "u32"),
        (able("netdev", NO_U32), None),
        (able("netdev", NO_HTB), None),
        (able("system", NO_HTB), None),
        (able("netdev", TrafficControl()), "u32"),
        (able("none"), None),
    ],
)
def test_steering_is_what_datapath_and_kernel_can_do(
    capabilities: Capabilities, steering: str | None
) -> None:
    assert capabilities.steering == steering


def test_what_the_kernel_has_not_is_refused_for_every_object_that_needs_it() -> None:
    assert refused(EVERYTHING) == refused(TrafficControl()) == []
    assert refused(NO_HTB) == [
        (f"shaper of {name}", "this kernel has no HTB") for name in ("nic0", "nic1")
    ]
    found = refused(NO_U32)
    assert len(found) == len(desired_state().classifiers)
    assert all("no u32 classifier" in what for _, what in found)
    assert refused(NO_U32, desired=desired_state(classifiers=())) == []


def test_a_nic_that_is_up_without_a_carrier_is_refused_and_one_that_is_down_is_not() -> None:
    def observed(carrier: bool | None) -> ObservedState:
        dark = nic("nic0", "10.7.0.1/24", carrier=carrier)
        return BARE.model_copy(update={"nics": (dark, *BARE.nics[1:])})

    assert refused(observed=observed(True)) == refused(observed=observed(None)) == []
    assert refused(observed=observed(False)) == [("NIC nic0", "is up and has no carrier")]


def test_a_frame_that_the_driver_never_takes_is_not_answered_with_ip_link_set() -> None:
    state = desired_state(nics=("nic0",))
    bridges = tuple(b.model_copy(update={"mtu_bytes": 9000}) for b in state.bridges)
    small = nic("nic0", "10.7.0.1/24", driver="virtio_net", largest_mtu_bytes=4000)
    observed = BARE.model_copy(update={"nics": (small, *BARE.nics[1:])})
    (found,) = refusals(
        state.model_copy(update={"bridges": bridges}), observed, Ledger(), FACTS, WAY
    )
    assert "MTU 4000 at most (driver virtio_net)" in found.what
    assert "ip link set" not in found.remedy and "mtu: 1500" in found.remedy


def test_answers_are_told_apart_by_line() -> None:
    kinds, lines = zip(*abilities._questions(), strict=True)
    assert len(kinds) == len(lines) and kinds[0] == CLASSFUL_QDISC
    without_u32 = abilities._answers(kinds, {kinds.index(CLASSIFIER) + 1})
    assert without_u32.lacks(CLASSIFIER) and not without_u32.lacks(CLASSFUL_QDISC)
    assert not TrafficControl().lacks("anything")


def server_that_observes(found: ObservedState, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(Server, "observe_what_answers", lambda _: (found, None))
    monkeypatch.setattr(Server, "traffic_control", EVERYTHING)
    monkeypatch.setattr(server_driver, "open_vswitch_version", lambda _: "3.1.0")
    config = AgentConfig(
        server="s1", controller_url="https://x", certificate_file="", key_file="",
        authority_file="", state_dir="", datapath="netdev",
    )  # fmt: skip
    return Server(config)


def test_a_hello_has_nothing_of_what_stands_on_nics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NIC that is down may have thousands of VLANs, and a hello with too many values is refused;
    whoever takes the NIC over reads all of them."""
    down = nic("nic0", up=False, standing=tuple(f"interface vlan{i}" for i in range(4000)))
    server = server_that_observes(ObservedState(nics=(down,)), monkeypatch)
    (told,) = server.capabilities().nics
    assert told == down.model_copy(update={"standing": ()})


def test_a_hello_says_that_the_driver_has_not_answered_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    server, may_answer = server_that_observes(BARE, monkeypatch), threading.Event()
    monkeypatch.setattr(known_devices, "ANSWER_SECONDS", 0.0)

    def hangs() -> Found:
        may_answer.wait()
        return Found((), "")

    server.devices = KnownDevices(hangs)
    told = server.capabilities()
    may_answer.set()
    assert told.gpus_unread and told.devices == (processor(),) and not told.gpu_problem


@pytest.mark.network
def test_asking_the_kernel_touches_nothing_and_leaves_nothing(server: ServerUnderTest) -> None:
    before = server.snapshot(), server.sh("tc qdisc show dev lo")
    found: Capabilities = server.inside(lambda: Server(server.config).capabilities())
    after = server.snapshot(), server.sh("tc qdisc show dev lo")
    assert after == before
    kernel = found.traffic_control
    assert kernel.known and not kernel.lacks("htb") and not kernel.lacks("u32")
    assert found.steering == "u32" and found.offloading == ()
    (first, *_) = [n for n in found.nics if n.name == "nic0"]
    assert first.carrier and first.least_mtu_bytes == 68 and first.largest_mtu_bytes == 65535
    # A kind that no kernel has is not answered with yes.
    kinds = (*abilities.LEAF_QDISCS, "placewire_none")  # type: ignore[attr-defined]
    asked = server.inside(_asked_for, kinds)
    assert asked.lacks("placewire_none") and not asked.lacks("pfifo")
    server.sh("ip link set nic0 down", peer=True)
    (dark, *_) = [n for n in server.inside(lambda: Server(server.config).observe(Unmarked())).nics
                  if n.name == "nic0"]  # fmt: skip
    assert dark.up and dark.carrier is False


def _asked_for(kinds: tuple[str, ...]) -> TrafficControl:
    abilities.LEAF_QDISCS = kinds  # type: ignore[assignment, attr-defined]
    return abilities.traffic_control()


@pytest.mark.network
def test_without_open_vswitch_it_says_so(server: ServerUnderTest) -> None:
    config = server.config.model_copy(update={"ovsdb_remote": "unix:/nowhere/db.sock"})
    found: Capabilities = server.inside(lambda: Server(config).capabilities())
    assert found.datapath == "none" and found.steering is None
    assert {n.name for n in found.nics} >= {"nic0", "nic1", "mgmt"}


@pytest.mark.network
def test_whoever_may_make_no_namespace_holds_nothing_against_the_kernel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\necho 'unshare: unshare failed' >&2; exit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    assert subprocess.run([tmp_path / "unshare"], capture_output=True).returncode == 1
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert abilities.traffic_control() == TrafficControl()
