"""What an agent finds out about its own server."""

from __future__ import annotations

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from placewire.agent import wiring
from placewire.agent.contract.state import Ledger, TakenOver
from placewire.agent.reconcile.validate import UNKNOWN_KERNEL, refusals
from placewire.agent.wiring import addresses_towards, interfaces_towards
from tests.agent.observed_states import BARE
from tests.agent.states import desired_state


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
    for url in ("https://256.0.0.1:7443", "https://127.0.0.2:7443"):
        config: Any = SimpleNamespace(server="s1", controller_url=url, protected=())
        facts = wiring.server_facts(config, server)()
        facts = replace(facts, traffic_control=UNKNOWN_KERNEL)
        told[url] = refusals(desired_state(1), BARE, Ledger(), facts)
        ledger = Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",), mac=""),))
        told[f"{url} again"] = refusals(desired_state(1), BARE, ledger, facts)
    assert [r.where for r in told["https://256.0.0.1:7443"]] == ["NIC nic0", "NIC nic1"]
    assert all("256.0.0.1" in r.what for r in told["https://256.0.0.1:7443"])
    assert [r.where for r in told["https://256.0.0.1:7443 again"]] == ["NIC nic1"]
    assert told["https://127.0.0.2:7443"] == told["https://127.0.0.2:7443 again"] == ()
