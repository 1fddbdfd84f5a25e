"""A disk that hangs, as a frozen file system does, holds neither an undo nor a renewal."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from placewire.agent import store, wiring
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import LeaseState
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import RETRY_SECONDS, Kept
from placewire.agent.store import DiskStore
from placewire.agent.timed_store import TimedStore
from tests.agent.keeping import PLAN
from tests.agent.memory_agent import FACTS, MemoryAgent
from tests.agent.states import desired_state

SECONDS = 0.3


class HungAgent(MemoryAgent):
    def _start(self) -> Keeper:
        self.store = TimedStore(DiskStore(self.directory), SECONDS)  # type: ignore[assignment]
        return super()._start()


class Disk:
    """While it is frozen, every sync waits until it is thawed."""

    def __init__(self) -> None:
        self._thawed = threading.Event()
        self._thawed.set()

    def fsync(self, descriptor: int) -> None:
        assert self._thawed.wait(60)
        os.fsync(descriptor)

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(store, "os", SimpleNamespace(**{**vars(os), "fsync": made.fsync}))
    yield made
    made.thaw()


def _in_force(directory: Path) -> HungAgent:
    agent = HungAgent(directory)
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    agent.keeper.commit(1, 30)
    return agent


def test_a_lease_that_ends_is_undone_while_the_disk_hangs_and_saved_afterwards(
    tmp_path: Path, disk: Disk
) -> None:
    agent = _in_force(tmp_path)
    disk.freeze()
    began = time.monotonic()
    agent.wait(31)
    assert time.monotonic() - began < 10
    assert not agent.server.bridges
    lease = agent.keeper.lease
    assert lease.phase == "failed" and "cannot be written to disk: " in lease.detail
    assert f"has not answered for {SECONDS:g} s" in lease.detail
    agent.wait(RETRY_SECONDS)
    assert agent.keeper.lease.phase == "failed", "not done until it is durable"
    disk.thaw()
    _until_idle(agent)
    assert DiskStore(tmp_path).load().lease.is_idle


def test_a_destroy_ends_while_the_disk_hangs_and_says_what_is_not_written(
    tmp_path: Path, disk: Disk
) -> None:
    agent = _in_force(tmp_path)
    disk.freeze()
    report = agent.keeper.destroy(PLAN)
    assert not report.succeeded and not agent.server.bridges
    assert "all is undone, but that cannot be written to disk" in report.refusals[0].sentence
    disk.thaw()
    _until_idle(agent)
    assert agent.keeper.destroy(PLAN).succeeded


def test_a_disk_that_hangs_is_waited_for_once(tmp_path: Path, disk: Disk) -> None:
    agent = _in_force(tmp_path)
    disk.freeze()
    assert agent.keeper.renew(1, 60).is_in_force, "a renewal holds without the disk"
    began = time.monotonic()
    with pytest.raises(EffectError, match="not answered"):
        agent.keeper.commit(1, None)
    assert agent.keeper.renew(1, 60).is_in_force
    assert time.monotonic() - began < SECONDS


def test_the_agent_s_own_keeper_waits_only_so_long(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = AgentConfig(
        server="s1", controller_url="https://x", certificate_file="", key_file="",
        authority_file="", state_dir=str(tmp_path),
    )  # fmt: skip
    monkeypatch.setattr(wiring, "server_facts", lambda *_: FACTS)
    monkeypatch.setattr(wiring, "TimedStore", lambda disk: TimedStore(disk, SECONDS))
    keeper = wiring.build_keeper(config, MemoryAgent(tmp_path).network)  # type: ignore[arg-type]
    disk.freeze()
    with pytest.raises(EffectError, match="not answered"):
        keeper.restore(1)


def test_an_earlier_write_never_overwrites_a_later_one(tmp_path: Path, disk: Disk) -> None:
    timed = TimedStore(DiskStore(tmp_path), SECONDS)
    disk.freeze()
    with pytest.raises(TimeoutError):
        timed.save(_generation(1))
    with pytest.raises(TimeoutError):
        timed.save(_generation(2))
    with pytest.raises(TimeoutError):
        timed.audit([{"event": "stage"}])
    disk.thaw()
    deadline = time.monotonic() + 30
    while True:
        try:
            timed.save(_generation(3))
        except TimeoutError:
            assert time.monotonic() < deadline
            continue
        break
    assert timed.load().lease.generation == 3
    assert not (tmp_path / "audit.jsonl").exists()


def test_writes_of_several_threads_wait_for_each_other(tmp_path: Path) -> None:
    timed = TimedStore(DiskStore(tmp_path), 30)
    threads = [
        threading.Thread(target=timed.audit, args=([{"n": number}],)) for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == len(threads)


def test_what_the_disk_answers_is_raised(tmp_path: Path) -> None:
    timed = TimedStore(DiskStore(tmp_path / "state"), SECONDS)
    (tmp_path / "state").rmdir()
    with pytest.raises(FileNotFoundError):
        timed.save(_generation(1))


def _generation(number: int) -> Kept:
    return Kept(lease=LeaseState(phase="idle", generation=number))


def _until_idle(agent: MemoryAgent) -> None:
    deadline = time.monotonic() + 30
    while not agent.keeper.lease.is_idle:
        assert time.monotonic() < deadline
        agent.wait(RETRY_SECONDS)
