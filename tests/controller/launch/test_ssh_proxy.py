"""Few proxies begin at once, because the sshd of a jump host drops who comes with many others."""

from __future__ import annotations

import threading
import time

import pytest

from placewire.controller.launch import ssh_proxy
from placewire.controller.launch.ssh_patience import Patience
from placewire.controller.launch.ssh_proxy import proxy_in_turn


@pytest.fixture
def one_turn(monkeypatch: pytest.MonkeyPatch) -> threading.BoundedSemaphore:
    turn = threading.BoundedSemaphore(1)
    monkeypatch.setattr(ssh_proxy, "_TURNS", turn)
    return turn


def test_a_proxy_has_its_turn_until_a_server_is_heard(
    one_turn: threading.BoundedSemaphore,
) -> None:
    with Patience(60.0) as patience:
        begun = time.monotonic()
        proxy = proxy_in_turn("sh -c 'sleep 0.2; echo SSH-2.0-x; cat'", patience)
        assert time.monotonic() - begun >= 0.2
        assert proxy.connection.recv(100) == b"SSH-2.0-x\n"
        assert one_turn.acquire(blocking=False)
        proxy.connection.close()


def test_a_silent_server_keeps_no_other_waiting_for_long(
    one_turn: threading.BoundedSemaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_proxy, "_TURN_SECONDS", 0.1)
    with Patience(60.0) as patience:
        first, second = (proxy_in_turn("cat", patience) for _ in range(2))
        first.connection.close()
        second.connection.close()


def test_who_waits_in_vain_stops_in_time(one_turn: threading.BoundedSemaphore) -> None:
    with one_turn, Patience(0.1) as patience, pytest.raises(OSError, match="the same proxy"):
        proxy_in_turn("cat", patience)
