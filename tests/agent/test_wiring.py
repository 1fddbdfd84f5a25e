"""What an agent finds out about its own server."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any

import pytest

from placewire.agent import daemon, wiring
from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import Ledger, TakenOver
from placewire.agent.drivers.name_lookups import NameLookups
from placewire.agent.reconcile.validate import UNKNOWN_KERNEL, WayToController, refusals
from placewire.agent.wiring import way_towards
from tests.agent.memory_agent import WAY, MemoryAgent
from tests.agent.observed_states import BARE
from tests.agent.states import desired_state

CONFIG = AgentConfig(
    server="s1", controller_url="https://127.0.0.2:7443", certificate_file="", key_file="",
    authority_file="", state_dir="",
)  # fmt: skip


CONTROLLER = "https://controller.example"
LONG_SECONDS = 600.0
CAPABILITIES = Capabilities(
    datapath="netdev", set_queue_honoured=False, open_vswitch_version="3.1.0",
    kernel_version="6.1", python_version="3.11", nics=(), devices=(),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_looked_up_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "_LOOKUPS", NameLookups())


def test_the_way_to_the_controller_has_an_address_and_an_interface() -> None:
    way = way_towards("https://127.0.0.2:7443")
    assert (way.addresses, way.interfaces) == ({"127.0.0.1"}, {"lo"})


def test_without_a_way_there_is_neither() -> None:
    way = way_towards("https://256.0.0.1:7443")
    assert way.addresses == way.interfaces == frozenset()


def test_a_way_by_ipv6_has_an_interface_and_no_ipv4_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way = way_towards("https://[::1]:7443")
    assert (way.addresses, way.interfaces) == (frozenset(), {"lo"})
    asked = socket.getaddrinfo

    def named(_: str, port: int, **words: Any) -> list[Any]:
        return [*asked("::1", port, **words), *asked("127.0.0.2", port, **words)]

    monkeypatch.setattr(socket, "getaddrinfo", named)
    assert way_towards(CONTROLLER).addresses == {"127.0.0.1"}


def test_no_nic_is_taken_over_while_the_way_to_the_controller_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring, "open_vswitch_version", lambda _: "3.1.0")
    server: Any = SimpleNamespace(datapath="netdev", traffic_control=None)
    told = {}
    facts = replace(wiring.server_facts(CONFIG, server), traffic_control=UNKNOWN_KERNEL)
    for url in ("https://256.0.0.1:7443", "https://127.0.0.2:7443"):
        way = wiring.way_of(CONFIG.model_copy(update={"controller_url": url}))()
        told[url] = refusals(desired_state(1), BARE, Ledger(), facts, way)
        ledger = Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",), mac=""),))
        told[f"{url} again"] = refusals(desired_state(1), BARE, ledger, facts, way)
    assert [r.where for r in told["https://256.0.0.1:7443"]] == ["NIC nic0", "NIC nic1"]
    assert all("256.0.0.1" in r.what for r in told["https://256.0.0.1:7443"])
    assert [r.where for r in told["https://256.0.0.1:7443 again"]] == ["NIC nic1"]
    assert told["https://127.0.0.2:7443"] == told["https://127.0.0.2:7443 again"] == ()


def test_a_name_server_that_does_not_answer_is_waited_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Event()

    def asked(*_: Any, **__: Any) -> Any:
        answers.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    monkeypatch.setattr(wiring, "WAY_SECONDS", 0.1)
    try:
        way = way_towards(CONTROLLER)
        assert way == WayToController(frozenset(), frozenset(), CONTROLLER)
        assert not answers.is_set()
    finally:
        answers.set()


def test_a_hello_says_whether_the_way_to_the_controller_is_known(tmp_path: Path) -> None:
    keeper = MemoryAgent(tmp_path).keeper
    server: Any = SimpleNamespace(capabilities=lambda: CAPABILITIES)
    for url, address, interfaces in (
        ("https://127.0.0.2:7443", "127.0.0.1", ("lo",)),
        ("https://[::1]:7443", None, ("lo",)),
        ("https://256.0.0.1:7443", None, None),
    ):
        config = CONFIG.model_copy(update={"controller_url": url})
        hello = daemon._hello(config, server, keeper, "")
        assert (hello.management, hello.management_interfaces) == (address, interfaces)


class SlowNameServer:
    """Takes the place of socket.getaddrinfo; answers once it may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ask, self.asked, self.may_answer = socket.getaddrinfo, Semaphore(0), Event()
        self.error: OSError | None = None
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)

    def _answer(self, _: str, port: int, **words: Any) -> list[Any]:
        self.asked.release()
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [*self.ask("127.0.0.2", port, **words)]


def test_a_late_answer_is_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first name server dead, every lookup takes longer than anybody waits."""
    names, lookups = SlowNameServer(monkeypatch), NameLookups()
    try:
        assert lookups.places("controller.example", 7443, 0.0) == ()
        assert lookups.places("controller.example", 7443, 0.0) == ()
        names.asked.acquire()
        assert not names.asked.acquire(blocking=False), "one lookup at a time"
        names.may_answer.set()
        (place,) = lookups.places("controller.example", 7443, LONG_SECONDS)
        assert place.address == ("127.0.0.2", 7443)
        names.may_answer.clear()
        assert lookups.places("controller.example", 7443, 0.0) == (place,)
        assert lookups.places("other.example", 7443, 0.0) == ()
    finally:
        names.may_answer.set()


@pytest.mark.parametrize(("error", "stays"), [(socket.EAI_AGAIN, True), (socket.EAI_NONAME, False)])
def test_what_was_known_holds_until_a_name_server_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, error: int, stays: bool
) -> None:
    names, lookups = SlowNameServer(monkeypatch), NameLookups()
    names.may_answer.set()
    known = lookups.places("controller.example", 7443, LONG_SECONDS)
    names.error = socket.gaierror(error, "no")
    again = lookups.places("controller.example", 7443, LONG_SECONDS)
    assert len(known) == 1 and again == (known if stays else ())


def test_the_next_stage_has_the_way_that_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    names = SlowNameServer(monkeypatch)
    monkeypatch.setattr(wiring, "WAY_SECONDS", 0.0)
    try:
        assert way_towards(CONTROLLER).unknown_to == CONTROLLER
        monkeypatch.setattr(wiring, "WAY_SECONDS", LONG_SECONDS)
        names.may_answer.set()
        assert not way_towards(CONTROLLER).unknown_to
        names.may_answer.clear()
        monkeypatch.setattr(wiring, "WAY_SECONDS", 0.0)
        assert way_towards(CONTROLLER) == WayToController(
            frozenset({"127.0.0.1"}), frozenset({"lo"})
        )
    finally:
        names.may_answer.set()


def test_no_undo_asks_for_the_way_to_the_controller(tmp_path: Path) -> None:
    """What a name server answers, or does not, keeps no server from its former state."""
    agent, asked = MemoryAgent(tmp_path), 0

    def way() -> WayToController:
        nonlocal asked
        asked += 1
        return WAY

    agent.keeper._context.way = way
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    assert asked, "a stage takes NICs over"
    asked = 0
    assert agent.keeper.restore(1).succeeded and agent.keeper.lease.is_idle and not asked
    assert agent.keeper.stage(desired_state(2), 30).succeeded
    asked, agent.unix, agent.boot_seconds = 0, agent.unix + 60, agent.boot_seconds + 60
    report = agent.keeper.tick()
    assert report is not None and report.succeeded and agent.keeper.lease.is_idle
    assert not asked
