"""Ranks wait for one that loads for longer than for one that does nothing."""

from __future__ import annotations

import threading
import time

import pytest
from torch._C._distributed_c10d import TCPStore

from placewire.job.contract.specification import RankSpec
from placewire.job.errors import JobError
from placewire.job.transport.rendezvous import await_key, open_store, tell_loading
from tests.free_port import free_port


@pytest.fixture
def spec() -> RankSpec:
    return RankSpec(
        kind="placed", rank=0, world_size=1, device="s1/0", master_address="127.0.0.1",
        master_tcp_port=free_port(), rail_interfaces=(), placement_file="none", steps=1,
        timeout_seconds=2.0,
    )  # fmt: skip


def loading(store: TCPStore, ends: threading.Event, more: bool) -> None:
    loaded = 0
    while not ends.wait(0.2):
        loaded += more
        tell_loading(store, 1, loaded)


@pytest.mark.parametrize("more", [True, False])
def test_the_limit_begins_anew_while_more_is_loaded(spec: RankSpec, more: bool) -> None:
    store, ends = open_store(spec), threading.Event()
    theirs = open_store(spec.model_copy(update={"rank": 1}))
    beside = threading.Thread(target=loading, args=(theirs, ends, more))
    beside.start()
    began = time.monotonic()
    later = threading.Timer(
        5.0, lambda: open_store(spec.model_copy(update={"rank": 2})).set("a", "b")
    )
    later.start()
    try:
        if more:
            assert await_key(store, spec, "a", "rank 1 was not ready") == "b"
        else:
            with pytest.raises(JobError, match="rank 1 was not ready after 2 s"):
                await_key(store, spec, "a", "rank 1 was not ready")
            assert time.monotonic() - began < 5.0
    finally:
        ends.set()
        later.cancel()
        later.join()
        beside.join()
