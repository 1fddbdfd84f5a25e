"""Few proxies begin at once, because the sshd of a jump host drops who comes with many others."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from placewire.controller.errors import LaunchFailed
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
        proxy = proxy_in_turn("sh -c 'sleep 0.2; echo SSH-2.0-x; cat'", patience, "s1")
        assert time.monotonic() - begun >= 0.2
        assert proxy.connection.recv(100) == b"SSH-2.0-x\n"
        assert one_turn.acquire(blocking=False)
        proxy.connection.close()


def test_a_silent_server_keeps_no_other_waiting_for_long(
    one_turn: threading.BoundedSemaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_proxy, "_TURN_SECONDS", 0.1)
    with Patience(60.0) as patience:
        first, second = (proxy_in_turn("cat", patience, "s1") for _ in range(2))
        first.connection.close()
        second.connection.close()


def test_who_waits_in_vain_stops_in_time_and_is_not_said_to_be_silent(
    one_turn: threading.BoundedSemaphore,
) -> None:
    with one_turn, Patience(0.1) as patience, pytest.raises(LaunchFailed) as failed:
        proxy_in_turn("cat", patience, "s1")
    assert "within 0.1 s, no SSH connection to it was begun" in failed.value.what
    assert failed.value.where == "s1" and "was not asked" in failed.value.remedy


def test_a_server_has_all_its_time_after_the_wait_for_its_turn(
    one_turn: threading.BoundedSemaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    anew: list[bool] = []

    def counted(self: Patience) -> None:
        anew.append(one_turn.acquire(blocking=False))

    monkeypatch.setattr(Patience, "counts_anew", counted)
    with Patience(60.0) as patience:
        proxy_in_turn("echo SSH-2.0-x", patience, "s1").connection.close()
    assert anew == [False], "it has its turn by then"


def test_a_patience_that_counts_anew_lasts_as_long_as_a_new_one() -> None:
    with Patience(3.0) as patience:
        time.sleep(0.3)
        begun = time.monotonic()
        patience.counts_anew()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            patience.covers(ours)
            assert theirs.recv(1) == b"" and patience.is_over
        assert time.monotonic() - begun >= 2.9
