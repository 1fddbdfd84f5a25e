"""The state on disk and its copy: lost, cut, emptied, with a bit flipped, of another version."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewire.agent.contract.state import LeaseState, Ledger, TakenOver
from placewire.agent.reconcile.lease import Kept
from placewire.agent.store import (
    COPY_FILE,
    STATE_FILE,
    DamagedError,
    DiskStore,
    StoreError,
    put_damaged_aside,
    read_kept,
)

KEPT = Kept(
    lease=LeaseState(phase="committed", generation=3, highest_generation=3),
    ledger=Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",)),)),
)


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    made = DiskStore(tmp_path)
    made.save(KEPT)
    return made


@pytest.mark.parametrize("damaged", [STATE_FILE, COPY_FILE])
@pytest.mark.parametrize("how", ["lost", "empty", "cut", "flipped", "garbage"])
def test_one_of_the_two_files_is_enough(
    store: DiskStore, tmp_path: Path, damaged: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    _damage(tmp_path / damaged, how)
    with caplog.at_level(logging.ERROR):
        assert store.load() == KEPT
    assert ("its copy" in caplog.text) == (damaged == STATE_FILE), "using the copy is told"
    later = KEPT.model_copy(update={"lease": LeaseState(phase="idle", generation=0)})
    store.save(later)
    (tmp_path / damaged).unlink()
    assert store.load() == later, "both are written anew"


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "garbage"])
def test_a_damaged_state_is_never_taken_for_another_one(
    store: DiskStore, tmp_path: Path, how: str
) -> None:
    for name in (STATE_FILE, COPY_FILE):
        _damage(tmp_path / name, how)
    with pytest.raises(DamagedError, match=r"state\.json.*--from-marks"):
        store.load()
    before = {name: (tmp_path / name).read_bytes() for name in (STATE_FILE, COPY_FILE)}
    assert len(put_damaged_aside(tmp_path)) == 2
    assert store.load() == Kept()
    for name, data in before.items():
        assert (tmp_path / f"{name}.damaged").read_bytes() == data, "nothing is thrown away"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_flipped_bit_passes(store: DiskStore, tmp_path: Path, data: st.DataObject) -> None:
    store.save(KEPT)
    whole = (tmp_path / STATE_FILE).read_bytes()
    (tmp_path / COPY_FILE).unlink()
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    (tmp_path / STATE_FILE).write_bytes(flipped)
    # The end of the last line, and spaces of the header, may differ without harm.
    with contextlib.suppress(StoreError):
        assert store.load() == KEPT


def test_a_state_of_version_1_is_read(tmp_path: Path) -> None:
    fields = KEPT.model_dump(mode="json", exclude={"saved_at"})
    text = Kept.model_validate({**fields, "version": 1}).model_dump_json(exclude={"saved_at"})
    (tmp_path / STATE_FILE).write_text(text)
    assert read_kept(tmp_path).ledger == KEPT.ledger


def test_a_state_of_a_later_version_is_left_alone(store: DiskStore, tmp_path: Path) -> None:
    class Later(Kept):
        more: int = 1

    DiskStore(tmp_path).save(Later(**KEPT.model_dump()))
    with pytest.raises(StoreError, match="the version of the agent that wrote it") as raised:
        store.load()
    assert not isinstance(raised.value, DamagedError), "nobody may put it aside as damaged"


def _damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "lost":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        at = data.index(b"10.7.0.1")
        path.write_bytes(data[:at] + b"10.7.0.3" + data[at + 8 :])
    else:
        path.write_bytes(b"\x00\xff" * 100)
