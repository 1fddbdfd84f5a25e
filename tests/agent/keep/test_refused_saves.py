"""What an agent refused because its disk did not take it is not in force after a restart."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from placewire.agent import own_files, store
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import RETRY_SECONDS
from placewire.agent.store import STATE_FILE
from tests.agent.memory_agent import MemoryAgent
from tests.agent.states import desired_state


def _fail(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
    """Has fsync fail. fails: takes the number of the call, from 1."""
    calls: list[int] = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if fails(len(calls)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(descriptor)

    monkeypatch.setattr(store, "os", SimpleNamespace(**{**vars(os), "fsync": fsync}))


def _staged(directory: Path) -> MemoryAgent:
    agent = MemoryAgent(directory)
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    return agent


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("lost", [False, True])
def test_a_commit_that_was_refused_ends_with_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, lost: bool
) -> None:
    """at: which sync of the commit fails. lost: whether the state is lost: its copy counts."""
    agent = _staged(tmp_path)
    _fail(monkeypatch, lambda call: call == at)
    with pytest.raises(EffectError, match="cannot be saved"):
        agent.keeper.commit(1, None)
    if lost:
        (tmp_path / STATE_FILE).unlink()
    agent.restart()
    assert agent.keeper.lease.phase == "staged" and agent.keeper.lease.expires_unix is not None
    agent.wait(31)
    assert agent.keeper.lease.is_idle and not agent.server.bridges


def test_the_disk_is_brought_back_once_it_works_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = _staged(tmp_path)
    _fail(monkeypatch, lambda call: call >= 4)
    with pytest.raises(EffectError, match="starts before the disk works again may do it all the"):
        agent.keeper.commit(1, None)
    monkeypatch.undo()
    agent.boot_seconds += RETRY_SECONDS
    agent.unix += RETRY_SECONDS
    agent.keeper.save_again()
    agent.restart()
    assert agent.keeper.lease.phase == "staged"
    agent.wait(31)
    assert agent.keeper.lease.is_idle and not agent.server.bridges


def test_a_disk_that_has_no_room_for_both_files_takes_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = _staged(tmp_path)
    opened = own_files.open_own

    def full(path: Path, mode: str, buffering: int = -1) -> object:
        if path.name == "state.part":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, mode, buffering)

    monkeypatch.setattr(store, "open_own", full)
    with pytest.raises(EffectError, match="No space left"):
        agent.keeper.commit(1, None)
    monkeypatch.undo()
    (tmp_path / STATE_FILE).unlink()
    agent.restart()
    assert agent.keeper.lease.phase == "staged"


def test_what_waits_for_a_full_disk_is_held_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NIC nic1 waits: it was given back, and what it holds now cannot be written down."""
    agent = _staged(tmp_path)
    agent.keeper.commit(1, None)
    assert agent.keeper.stage(desired_state(2, nics=("nic0",)), 30).succeeded
    _fail(monkeypatch, lambda _: True)
    for _ in range(4):
        agent.wait(301)
    assert "NIC nic1: is left as it is" in agent.keeper.lease.detail
    kept = agent.keeper._memory.kept
    caplog.clear()
    context = agent.keeper._context
    for _ in range(3):
        taken = context.take(kept.desired, context.observe(kept.desired, kept.ledger))
        assert taken.refused
    assert agent.keeper._memory.kept is kept and "going on without" not in caplog.text
