"""Where the agent may open no more files, it says so, and what to do."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from placewire.agent.measure.iperf3_clients import run_transfers
from placewire.agent.measure.iperf3_servers import Iperf3Servers
from placewire.agent.reconcile.effects import EffectError
from tests.agent.transfers import transfer


@contextmanager
def none_left() -> Iterator[int]:
    """This process can open no file. Gives its limit."""
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    least_free = os.dup(0)
    os.close(least_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least_free, former[1]))
    try:
        yield least_free
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


async def test_a_sender_without_descriptors_says_what_to_do() -> None:
    with none_left() as most:
        (result,) = await run_transfers((transfer(2),), 1, time.time())
    assert result.error is not None
    assert result.error.startswith(f"iperf3 cannot be started: the agent may have {most} files")
    assert "`LimitNOFILE=`" in result.error and "`network.sharing: job`" in result.error


async def test_receivers_without_descriptors_say_it_once_for_all() -> None:
    with none_left(), pytest.raises(EffectError) as told:
        await Iperf3Servers().start((transfer(2), transfer(3)), 1)
    assert str(told.value).count("`LimitNOFILE=`") == 1
