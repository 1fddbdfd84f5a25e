"""What an agent finds out about its own server."""

from __future__ import annotations

from placewire.agent.wiring import addresses_towards, interfaces_towards


def test_the_way_to_the_controller_has_an_address_and_an_interface() -> None:
    controller = "https://127.0.0.2:7443"
    assert addresses_towards(controller) == {"127.0.0.1"}
    assert interfaces_towards(controller) == {"lo"}


def test_without_a_way_there_is_neither() -> None:
    nowhere = "https://256.0.0.1:7443"
    assert addresses_towards(nowhere) == interfaces_towards(nowhere) == frozenset()
