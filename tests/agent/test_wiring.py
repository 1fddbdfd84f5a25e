"""What an agent finds out about its own server."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from placewire.agent import wiring
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import Ledger, TakenOver
from placewire.agent.reconcile.validate import UNKNOWN_KERNEL, WayToController, refusals
from placewire.agent.wiring import addresses_towards, interfaces_towards
from tests.agent.memory_agent import WAY, MemoryAgent
from tests.agent.observed_states import BARE
from tests.agent.states import desired_state

CONFIG = AgentConfig(
    server="s1", controller_url="https://127.0.0.2:7443", certificate_file="", key_file="",
    authority_file="", state_dir="",
)  # fmt: skip


def test_the_way_to_the_controller_has_an_address_and_an_interface() -> None:
    controller = "https://127.0.0.2:7443"
    assert addresses_towards(controller) == {"127.0.0.1"}
    assert interfaces_towards(controller) == {"lo"}


def test_without_a_way_there_is_neither() -> None:
    nowhere = "https://256.0.0.1:7443"
    assert addresses_towards(nowhere) == interfaces_towards(nowhere) == frozenset()


def test_a_way_by_ipv6_has_an_interface_and_no_ipv4_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert interfaces_towards("https://[::1]:7443") == {"lo"}
    assert addresses_towards("https://[::1]:7443") == frozenset()
    asked = socket.getaddrinfo

    def named(_: str, port: int, **words: Any) -> list[Any]:
        return [*asked("::1", port, **words), *asked("127.0.0.2", port, **words)]

    monkeypatch.setattr(socket, "getaddrinfo", named)
    assert addresses_towards("https://controller.example") == {"127.0.0.1"}


def test_no_nic_is_taken_over_while_the_way_to_the_controller_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring, "open_vswitch_version", lambda: "3.1.0")
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
        way = wiring.way_towards("https://controller.example")
        assert way == WayToController(frozenset(), frozenset(), "https://controller.example")
        assert not answers.is_set()
    finally:
        answers.set()


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
