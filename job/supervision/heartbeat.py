"""Heartbeats, by which ranks notice a lost rank though none of its connections was closed.

A rank whose process ends closes its connections, and the ranks that wait for it notice at once. A
rank that is frozen, or whose server is out of reach, closes nothing. Therefore a thread of every
rank increases a counter in rank 0's store, however long an operator takes, and watches the other
ranks' counters.
"""

from __future__ import annotations

import contextlib
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
# Connections to a lost rank end this much later than its heartbeat is missed: only the heartbeat
# can name the rank.
_TCP_EXTRA_SECONDS = 4.0

Lost = Callable[[Failed], None]


class Heart:
    """To be started once rank 0's store exists. on_lost is called at most once, by a thread, and
    ends the process, whose main thread may be stuck in gloo or NCCL."""

    def __init__(self, spec: RankSpec, on_lost: Lost) -> None:
        self._spec, self._on_lost = spec, on_lost
        self._peers = [rank for rank in range(spec.world_size) if rank != spec.rank]
        self._silence = dict.fromkeys(self._peers, 0.0)
        self._seen: dict[int, str] = {}
        self._store_silence = 0.0
        self._store_lost = ""
        self._finishing = threading.Event()
        self._done = threading.Event()

    def start(self) -> None:
        for work, name in ((self._beat, "heartbeat"), (self._watch, "heartbeats of others")):
            threading.Thread(target=work, name=name, daemon=True).start()

    def finish(self) -> None:
        """To be called after the last step. Returns when this rank may end: rank 0 after all
        others, because its store is the sign of life that they watch."""
        self._finishing.set()
        self._done.wait()

    def _beat(self) -> None:
        spec, count = self._spec, 0
        try:
            store = TCPStore(
                spec.master_address,
                spec.master_tcp_port,
                is_master=False,
                timeout=timedelta(seconds=spec.loss_seconds),
                wait_for_workers=False,
            )
            while True:
                finishing, count = self._finishing.is_set(), count + 1
                store.set(f"beat/{spec.rank}", _DONE if finishing else str(count))
                if finishing and spec.rank:
                    # Rank 0 may end from here on, and its store with it.
                    self._done.set()
                    return
                for peer in self._peers:
                    key = f"beat/{peer}"
                    if store.check([key]):
                        seen = store.get(key).decode()
                        if seen != self._seen.get(peer):
                            self._seen[peer], self._silence[peer] = seen, 0.0
                self._store_silence = 0.0
                if finishing and all(self._seen.get(peer) == _DONE for peer in self._peers):
                    self._done.set()
                    return
                if finishing:
                    time.sleep(_BEAT_SECONDS / 10)
                else:
                    self._finishing.wait(_BEAT_SECONDS)
        except RuntimeError as error:
            self._store_lost = str(error).splitlines()[0] or "its store is gone"

    def _watch(self) -> None:
        looked = time.monotonic()
        while not self._done.is_set():
            time.sleep(_BEAT_SECONDS / 2)
            now = time.monotonic()
            passed, looked = min(now - looked, _LONGEST_LOOK_SECONDS), now
            if self._store_lost:
                time.sleep(_CAUSE_SECONDS)
                self._say(0, f"its connection ended: {self._store_lost}")
                return
            self._store_silence += passed
            for peer in self._peers:  # the other thread adds to what was seen
                if self._seen.get(peer, _DONE) != _DONE:
                    self._silence[peer] += passed
            if self._store_silence > self._spec.loss_seconds:
                self._say(0, "it does not answer")
                return
            for peer, silence in self._silence.items():
                if silence > self._spec.loss_seconds:
                    self._say(peer, f"it gave no sign of life for {silence:.0f} s")
                    return

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


def limit_tcp_waits(loss_seconds: float) -> None:
    """Ends each connection of this process when what it sent stays unacknowledged for that long.

    The kernel's own limit is a quarter of an hour, because it cannot tell a rail that is down from
    a slow one. gloo and NCCL have no setting for it, but a process can set options of all sockets.
    """
    milliseconds = int((loss_seconds + _TCP_EXTRA_SECONDS) * 1000)
    for _, ours in tcp_connections():
        with contextlib.suppress(OSError):  # closed meanwhile
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
