"""A server is judged by the state that its daemon has on disk while it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.agent import steady
from placewire.agent.contract.state import LeasePhase, LeaseState
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import Kept
from placewire.agent.steady import ATTEMPTS, read_steadily
from placewire.agent.store import STATE_FILE, DiskStore


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "PAUSE_SECONDS", 0)


def save(directory: Path, phase: LeasePhase, generation: int = 1, detail: str = "") -> None:
    lease = LeaseState(phase=phase, generation=generation, detail=detail)
    DiskStore(directory).save(Kept(lease=lease))


@pytest.mark.parametrize(("before", "after"), [("idle", "applying"), ("restoring", "idle")])
def test_a_change_that_begins_or_ends_meanwhile_is_read_again(
    tmp_path: Path, before: LeasePhase, after: LeasePhase
) -> None:
    save(tmp_path, before)
    reads: list[int] = []

    def read() -> str:
        reads.append(1)
        save(tmp_path, after)
        return f"reading {len(reads)}"

    assert read_steadily(tmp_path, read) == "reading 2"


def test_a_renewal_meanwhile_is_no_change(tmp_path: Path) -> None:
    save(tmp_path, "committed")

    def read() -> str:
        save(tmp_path, "committed", detail="renewed")
        return "read once"

    assert read_steadily(tmp_path, read) == "read once"


def test_changes_without_end_are_said(tmp_path: Path) -> None:
    generations = iter(range(100))
    with pytest.raises(EffectError, match="ask again"):
        read_steadily(tmp_path, lambda: save(tmp_path, "applying", next(generations)))
    assert next(generations) == ATTEMPTS


def test_a_damaged_state_does_not_keep_the_server_from_being_read(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text("{")
    assert read_steadily(tmp_path, lambda: "read") == "read"
