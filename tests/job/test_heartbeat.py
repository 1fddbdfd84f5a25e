"""Heartbeats of other ranks, and what a network does to them that carries nothing for a while."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

import placewire.job.supervision.heartbeat as module
from placewire.job.contract.specification import Failed, RankSpec
from placewire.job.supervision.heartbeat import Heart, limit_tcp_waits
from tests.job.ranks import LONGEST_SECONDS


def spec_of(rank: int, world_size: int, **more: Any) -> RankSpec:
    known: dict[str, Any] = {
        "kind": "placed", "device": "s1/0", "master_address": "127.0.0.1", "master_tcp_port": 1,
        "rail_interfaces": (), "placement_file": "", "steps": 1,
    }  # fmt: skip
    return RankSpec.model_validate({**known, "rank": rank, "world_size": world_size, **more})


class Growing(dict[int, str]):
    """What was seen, to which the other thread adds rank 2 while somebody looks at rank 1."""

    def __getitem__(self, peer: int) -> str:
        self[2] = "1"
        return super().__getitem__(peer)

    def get(self, peer: int, default: Any = None) -> Any:
        self[2] = "1"
        return super().get(peer, default)


def test_a_rank_that_is_seen_first_while_others_are_watched_ends_no_watch() -> None:
    lost: list[Failed] = []
    heart = Heart(spec_of(0, 3, loss_seconds=0.8), lost.append)
    heart._seen = Growing({1: "1"})
    heart._watch()
    assert len(lost) == 1


class Clock:
    """Only sleeping moves it. each: called after each sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.each: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.each()


class Watched:
    """Rank 2 of three watches, to its end. tries: when it let rank 0's store be tried again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.tries, self.lost = Clock(), list[float](), list[Failed]()
        monkeypatch.setattr(module, "time", self.clock)
        self.heart = Heart(spec_of(2, 3), self.lost.append)
        monkeypatch.setattr(self.heart, "_begin_beating", self._tried)

    def _tried(self) -> None:
        self.tries.append(self.clock.now)

    def until_lost(self, each: Callable[[float], None]) -> Failed:
        self.clock.each = lambda: each(self.clock.now)
        self.heart._watch()
        (lost,) = self.lost
        return lost


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_rank_whose_counter_stands_still_is_lost_after_half_a_minute(
    monkeypatch: pytest.MonkeyPatch, frozen: int
) -> None:
    watched = Watched(monkeypatch)

    def each(now: float) -> None:
        watched.heart._answers += 1
        for rank in (0, 1):
            watched.heart._seen[rank] = "7" if rank == frozen and now > 50 else str(now)

    lost = watched.until_lost(each)
    assert lost.lost_rank == frozen and f"rank {frozen} is lost" in lost.what
    assert 80 < watched.clock.now < 82 and not watched.tries


def test_ranks_that_meet_before_steps_live_though_no_heartbeat_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The management network is gone for good, and steps of 20 s pass, up to some time."""
    watched = Watched(monkeypatch)
    watched.heart._seen = {0: "7", 1: "7"}
    met = 0.0

    def each(now: float) -> None:
        nonlocal met
        if met + 20 <= now <= 3_600:
            met = now
            watched.heart.met()

    assert "no step began meanwhile" in watched.until_lost(each).what
    assert 3_630 <= watched.clock.now < 3_632
    apart = {later - before for before, later in pairwise(watched.tries)}
    assert apart == {5.0}, "meanwhile the store is tried again and again"


def test_nobody_is_lost_before_tcp_has_tried_again_a_network_that_was_gone_for_20_s() -> None:
    """It waits twice as long before each further try, at first by how long an answer takes."""
    loss_seconds = spec_of(0, 2).loss_seconds
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as ours:
            limit_tcp_waits(loss_seconds)
            limit = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
    for first in (0.2, 0.21, 0.25, 0.3, 0.4, 0.6, 1.0):
        tries = [first * (2**k - 1) for k in range(1, 12)]
        for gone_seconds in range(1, 21):
            assert next(at for at in tries if at >= gone_seconds) < limit
    assert loss_seconds > 0.2 * (2**7 - 1) and limit >= loss_seconds + 10


class Relay:
    """Stands between ranks and rank 0's store, as a network does."""

    def __init__(self, store_port: int) -> None:
        self._store_port = store_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._stalled: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(("127.0.0.1", self._store_port))
                self._ends += [ours, theirs]
                for ends in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._stalled:
                    to.sendall(data)

    def stall(self) -> None:
        """What is connected carries nothing any more, and nobody is told."""
        self._stalled.update(self._ends)

    def cut(self) -> None:
        """What is connected breaks."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """As where rank 0's process ends."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()


class Pair:
    """Rank 0, and rank 1 behind a relay."""

    def __init__(self) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.relay = Relay(self.store.port)
        self.lost: list[Failed] = []
        self.hearts = [
            Heart(
                spec_of(rank, 2, master_tcp_port=port, loss_seconds=LONGEST_SECONDS),
                self.lost.append,
            )
            for rank, port in enumerate((self.store.port, self.relay.port))
        ]
        for heart in self.hearts:
            heart.start()

    def beats(self) -> None:
        """Waits until rank 1 has got further answers."""
        before = self.hearts[1]._answers
        wait_for(lambda: self.hearts[1]._answers > before + 2)


def wait_for(true: Callable[[], object]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.5)
    monkeypatch.setattr(module, "_CAUSE_SECONDS", 0.1)
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0.1)
    made = Pair()
    yield made
    for heart in made.hearts:
        heart._done.set()
    made.relay.close()


@pytest.mark.parametrize("harm", ["stall", "cut"])
def test_a_connection_to_rank_0_s_store_is_made_anew(pair: Pair, harm: str) -> None:
    for _ in range(3):
        pair.beats()
        getattr(pair.relay, harm)()
    pair.beats()
    assert not pair.lost


@pytest.mark.parametrize("harm", ["nothing", "stall", "cut"])
def test_ranks_end_together_also_over_a_new_connection(pair: Pair, harm: str) -> None:
    pair.beats()
    ending = [threading.Thread(target=heart.finish, daemon=True) for heart in pair.hearts]
    ending[0].start()
    if harm != "nothing":
        getattr(pair.relay, harm)()
    ending[1].start()
    for thread in ending:
        thread.join(LONGEST_SECONDS)
        assert not thread.is_alive()
    assert not pair.lost


def test_the_end_of_rank_0_is_found_long_before_it_is_silent(pair: Pair) -> None:
    pair.beats()
    pair.relay.close()
    wait_for(lambda: pair.lost)
    (lost,) = pair.lost
    assert lost.lost_rank == 0 and "nothing listens at 127.0.0.1" in lost.what
