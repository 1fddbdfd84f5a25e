"""Ranks wait for one that loads for longer than for one that does nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.job.transport.rendezvous import await_key, tell_loading
from tests.free_port import free_port

LIMIT_SECONDS, SET_AFTER_SECONDS = 10.0, 60.0


class Waiting:
    """A real store, in which a wait takes a second of a clock that stands otherwise. Meanwhile
    rank 1 loads as many bytes more as are given, and at last sets the key."""

    def __init__(self, more: int) -> None:
        self.seconds = 0.0
        self._more = more
        self._store = TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.seconds += timeout.total_seconds()
        tell_loading(self._store, 1, round(self.seconds) * self._more)
        if self.seconds < SET_AFTER_SECONDS:
            raise dist.DistStoreError("not set")
        self._store.set("a", "b")

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check(keys))

    def get(self, key: str) -> bytes:
        return bytes(self._store.get(key))


@pytest.mark.parametrize("more", [1, 0])
def test_the_limit_begins_anew_while_more_is_loaded(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    store = Waiting(more)
    monkeypatch.setattr("time.monotonic", lambda: store.seconds)
    theirs = cast(TCPStore, store)
    spec = RankSpec(
        kind="placed", rank=0, world_size=2, device="s1/0", master_address="127.0.0.1",
        master_tcp_port=1, rail_interfaces=(), placement_file="none", steps=1,
        timeout_seconds=LIMIT_SECONDS,
    )  # fmt: skip
    if more:
        assert await_key(theirs, spec, "a", "rank 1 was not ready") == "b"
        return
    with pytest.raises(JobError, match="rank 1 was not ready after 10 s") as gave_up:
        await_key(theirs, spec, "a", "rank 1 was not ready")
    assert "give job.start_limit more than 10s" in gave_up.value.remedy
    assert store.seconds < 2 * LIMIT_SECONDS
