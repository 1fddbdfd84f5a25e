"""Heartbeats, by which ranks notice a lost rank though none of its connections was closed.

A rank whose process ends closes its connections, and the ranks that wait for it notice at once. A
rank that is frozen, or whose server is out of reach, closes nothing. Therefore a thread of every
rank increases a counter in rank 0's store, however long an operator takes, and watches the other
ranks' counters.

The store is reached over the management network, which may carry nothing for a while. A connection
to it that is broken, or that gets no answer, is made anew. And ranks meet over the rails before
each step: then all of them live, whatever became of the counters.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.specification import Failed, RankSpec
from placewire.job.transport.tcp_connections import tcp_connections

_BEAT_SECONDS = 1.0
# A longer time between two looks is a pause of this rank itself and says nothing about the others.
_LONGEST_LOOK_SECONDS = 2.0
_DONE = "done"
# If the lost rank ended, its connections tell the cause; this much time is left for them to do so.
_CAUSE_SECONDS = 2.0
# TCP waits twice as long before each further try, and so may try a network that is back only after
# as much time again as it was gone. A new connection is tried at once.
_RETRY_SECONDS, _CONNECT_SECONDS = 5.0, 3.0
# Connections to a lost rank end this much later than its heartbeat is missed: only the heartbeat
# can name the rank. And TCP must have tried a rail again that was gone for up to 20 s: it tries
# after 0.2, 0.6, 1.4, 3, 6.2, 12.6, 25.4 s where an answer takes some milliseconds, after 0.3, 0.9,
# 2.1, 4.5, 9.3, 18.9, 38.1 s where it takes 0.1 s, and always before twice the time that the rail
# was gone and its first wait, of a second at most in a cluster.
_TCP_EXTRA_SECONDS = 12.0

Lost = Callable[[Failed], None]


class Heart:
    """To be started once rank 0's store exists. on_lost is called at most once, by a thread, and
    ends the process, whose main thread may be stuck in gloo or NCCL."""

    def __init__(self, spec: RankSpec, on_lost: Lost) -> None:
        self._spec, self._on_lost = spec, on_lost
        self._peers = [rank for rank in range(spec.world_size) if rank != spec.rank]
        # Written by threads that beat: what was seen of the others' counters, how often the store
        # answered, and the newest thread that it answered.
        self._seen: dict[int, str] = {}
        self._counts, self._answers, self._answered = itertools.count(1), 0, 0
        self._has_told_done = False
        self._rank_0_gone = ""
        # Written by the thread that watches.
        self._threads = 0
        # Written by the rank's main thread.
        self._meetings = 0
        self._finishing = threading.Event()
        self._done = threading.Event()

    def start(self) -> None:
        self._begin_beating()
        threading.Thread(target=self._watch, name="heartbeats of others", daemon=True).start()

    def met(self) -> None:
        """To be called when this rank has passed a barrier of all ranks over the rails."""
        self._meetings += 1

    def finish(self) -> None:
        """To be called after the last step. Returns when this rank may end: rank 0 after all
        others, because its store is the sign of life that they watch."""
        self._finishing.set()
        self._done.wait()

    def _begin_beating(self) -> None:
        """TCPStore has no time limit for an answer: a thread that waits for one is left behind."""
        self._threads += 1
        beating = threading.Thread(
            target=self._beat, args=(self._threads,), name="heartbeat", daemon=True
        )
        beating.start()

    def _beat(self, number: int) -> None:
        """Connects to rank 0's store and beats, until a newer thread does. Returns where rank 0 is
        out of reach: the thread that watches has it tried again."""
        spec, broken = self._spec, ""
        place = spec.master_address, spec.master_tcp_port
        while not self._done.is_set():
            try:
                # TCPStore does not tell a port at which nobody listens from one out of reach.
                socket.create_connection(place, timeout=_CONNECT_SECONDS).close()
            except OSError as error:
                nobody_listens = isinstance(error, ConnectionRefusedError)
                if self._has_told_done and (broken or nobody_listens):
                    self._done.set()  # Rank 0 has ended, as it may.
                elif nobody_listens:
                    ended = f"its connection ended ({broken}), and " if broken else ""
                    self._rank_0_gone = f"{ended}nothing listens at {place[0]}:{place[1]}"
                return
            try:
                store = TCPStore(
                    *place,
                    is_master=False,
                    timeout=timedelta(seconds=_CONNECT_SECONDS),
                    wait_for_workers=False,
                )
                while self._beat_once(store, number):
                    if self._finishing.is_set():
                        time.sleep(_BEAT_SECONDS / 10)
                    else:
                        self._finishing.wait(_BEAT_SECONDS)
                return
            except RuntimeError as error:
                time.sleep(_BEAT_SECONDS if broken else _BEAT_SECONDS / 10)
                broken = str(error).splitlines()[0] or "its store is gone"

    def _beat_once(self, store: TCPStore, number: int) -> bool:
        """Returns whether this thread beats on. Raises RuntimeError where the connection breaks."""
        rank, finishing, own = self._spec.rank, self._finishing.is_set(), f"beat/{self._spec.rank}"
        store.set(own, _DONE if finishing else str(next(self._counts)))
        if finishing and rank:
            self._has_told_done = True
            store.check([own])  # An answer shows that it is there.
            # Rank 0 may end from here on, and its store with it.
            self._done.set()
            return False
        for peer in self._peers:
            key = f"beat/{peer}"
            seen = store.get(key).decode() if store.check([key]) else None
            if number < self._answered:
                return False
            self._answered, self._answers = number, self._answers + 1
            if seen is not None:
                self._seen[peer] = seen
        if finishing and all(self._seen.get(peer) == _DONE for peer in self._peers):
            self._done.set()
            return False
        return True

    def _watch(self) -> None:
        loss_seconds, looked = self._spec.loss_seconds, time.monotonic()
        before: dict[int, str | None] = dict.fromkeys(self._peers)
        silence = dict.fromkeys(self._peers, 0.0)
        answers = meetings = 0
        store_silence = unanswered = 0.0
        retry_at = _RETRY_SECONDS
        while not self._done.is_set():
            time.sleep(_BEAT_SECONDS / 2)
            now = time.monotonic()
            passed, looked = min(now - looked, _LONGEST_LOOK_SECONDS), now
            if self._rank_0_gone:
                time.sleep(_CAUSE_SECONDS)
                self._say(0, self._rank_0_gone)
                return
            have_met, meetings = self._meetings != meetings, self._meetings
            answered, answers = self._answers != answers, self._answers
            unanswered = 0.0 if answered else unanswered + passed
            store_silence = 0.0 if answered or have_met else store_silence + passed
            for peer in self._peers:
                seen = self._seen.get(peer)  # None: not yet
                lives = have_met or seen in (None, _DONE) or seen != before[peer]
                silence[peer] = 0.0 if lives else silence[peer] + passed
                before[peer] = seen
            if store_silence > loss_seconds:
                self._say(0, _without_a_sign(store_silence))
                return
            for peer, seconds in silence.items():
                if seconds > loss_seconds:
                    self._say(peer, _without_a_sign(seconds))
                    return
            retry_at = _RETRY_SECONDS if answered else retry_at
            if unanswered >= retry_at:
                retry_at += _RETRY_SECONDS
                self._begin_beating()

    def _say(self, lost: int, how: str) -> None:
        self._on_lost(
            Failed(
                rank=self._spec.rank,
                what=f"rank {lost} is lost: {how}",
                remedy=f"check that rank {lost}'s server is up and reachable over the management "
                "network, and that the process was not stopped",
                lost_rank=lost,
            )
        )


def _without_a_sign(seconds: float) -> str:
    return f"it gave no sign of life for {seconds:.0f} s, and no step began meanwhile"


def limit_tcp_waits(loss_seconds: float) -> None:
    """Ends each connection over a rail when what was sent on it stays unacknowledged for that long,
    and so much longer that TCP has tried again.

    The kernel's own limit is a quarter of an hour, because it cannot tell a rail that is down from
    a slow one. gloo and NCCL have no setting for it, but a process can set options of all sockets.
    """
    milliseconds = int((loss_seconds + _TCP_EXTRA_SECONDS) * 1000)
    for _, ours in tcp_connections():
        with contextlib.suppress(OSError):  # closed meanwhile
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
