"""The lease's state machine and the keeper around it: decisions with a fake network and clock."""

from __future__ import annotations

import contextlib
import errno
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.agent.contract.entries import COLLECTIONS
from placewire.agent.reconcile.canonical import canonical
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import Kept, LeaseRefusedError
from placewire.agent.store import (
    AUDIT_FILES,
    AlreadyRunningError,
    DiskStore,
    StoreError,
    read_kept,
    take_lock,
)
from tests.agent.world import BARE, Crash, World, plan


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_stage_commit_and_restore_by_hand(world: World) -> None:
    before = world.network.state
    keeper = world.keeper()
    report = keeper.stage(plan(3), lease_seconds=10)
    assert report.succeeded and report.changes
    assert (keeper.lease.phase, keeper.lease.expires_unix) == ("staged", 1010.0)
    assert keeper.commit(3, None).phase == "committed"
    world.now = 1e9
    resumed = world.keeper().resume()
    assert resumed is not None and resumed.changes == ()
    looked = keeper.tick()
    assert looked is not None and looked.succeeded and not looked.changes, "kept until told"
    assert keeper.restore(3).succeeded
    assert world.network.state == before
    assert (keeper.lease.phase, keeper.lease.highest_generation) == ("idle", 3)


def test_an_expired_lease_brings_the_baseline_back(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.commit(1, None)
    first = world.network.state
    keeper.stage(plan(2, flows=()), 10)
    assert world.network.state != first
    world.now += 9
    keeper.renew(2, 10)
    world.now += 9
    assert keeper.tick() is None
    world.now += 2
    assert keeper.tick() is not None
    assert world.network.state == first
    assert (keeper.lease.phase, keeper.lease.generation) == ("committed", 1)
    assert (keeper.lease.expires_unix, keeper.lease.highest_generation) == (None, 2)


def test_a_baseline_whose_own_lease_ran_out_does_not_come_back(world: World) -> None:
    before = world.network.state
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.commit(1, 20)
    keeper.stage(plan(2, flows=()), 30)
    world.now += 31
    keeper.tick()
    assert world.network.state == before and keeper.lease.phase == "idle"


def test_a_staged_state_is_never_a_baseline(world: World) -> None:
    before = world.network.state
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.stage(plan(2, flows=()), 10)
    assert keeper.restore(2).succeeded
    assert world.network.state == before


def test_what_a_plan_changed_is_put_back_two_plans_later(world: World) -> None:
    """The first plan set a sysctl; the second does not; destroying it leaves the foreign value."""
    keeper = world.keeper()
    before = world.network.state
    keeper.stage(plan(1), 10)
    keeper.commit(1, None)
    keeper.stage(plan(2, sysctls=()), 10)
    assert world.network.sysctls["net.ipv4.conf.nic0.rp_filter"] == "0"
    keeper.commit(2, None)
    keeper.restore(2)
    assert world.network.sysctls["net.ipv4.conf.nic0.rp_filter"] == "2"
    keeper.destroy("test-plan")
    assert world.network.state == before


def test_a_server_carries_one_plan_at_a_time(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.commit(1, None)
    kept = world.network.state
    other = plan(2, plan_name="another")
    refused = [*keeper.preview(other).refusals, *keeper.stage(other, 10).refusals]
    assert len(refused) == 2 and all("'test-plan' is in force" in r.what for r in refused)
    with pytest.raises(LeaseRefusedError, match="'test-plan' is in force"):
        keeper.destroy("another")
    assert world.network.state == kept
    keeper.destroy("test-plan")
    assert keeper.stage(other.model_copy(update={"generation": 3}), 10).succeeded


@pytest.mark.parametrize("generation", [1, 4])
def test_generations_only_go_up(world: World, generation: int) -> None:
    keeper = world.keeper()
    keeper.stage(plan(5), 10)
    state, lease = world.network.state, keeper.lease
    report = keeper.stage(plan(generation, flows=()), 10)
    assert not report.succeeded and "not above 5" in report.refusals[0].what
    assert world.network.state == state and keeper.lease == lease
    previewed = keeper.preview(plan(generation, flows=()))
    assert previewed.refusals == report.refusals and previewed.changes == ()
    assert keeper.preview(plan(6, flows=())).changes


def test_the_same_stage_again_is_harmless_and_another_content_refused(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(5), 10)
    world.now += 5
    assert keeper.stage(plan(5), 10).changes == ()
    assert keeper.lease.expires_unix == 1015.0
    assert keeper.stage(plan(5, flows=()), 10).refusals
    keeper.commit(5, None)
    assert keeper.stage(plan(5), 10).succeeded
    assert (keeper.lease.phase, keeper.lease.expires_unix) == ("committed", None)


def test_a_restore_before_its_late_stage_wins(world: World) -> None:
    keeper = world.keeper()
    assert keeper.restore(7).changes == ()
    assert keeper.stage(plan(7), 10).refusals
    assert world.network.touched == 0


def test_a_restore_before_its_late_stage_is_refused_where_a_restart_would_forget_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = world.keeper()
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "save", no_space)
        with pytest.raises(EffectError, match="cannot be saved"):
            keeper.restore(7)
    assert keeper.lease == world.keeper().lease
    keeper.restore(7)
    assert world.keeper().lease.highest_generation == 7


def no_space(kept: Kept) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_late_commit_under_a_lease_does_not_end_what_is_kept(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.commit(1, None)
    assert keeper.commit(1, 10).expires_unix is None


def test_a_decision_stands_though_staging_it_again_fails(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.commit(1, None)
    whole = world.network.state
    for key in [key for key in world.network.entries if key[0] == "rules"]:
        del world.network.entries[key]
    world.network.fail_after = 0
    assert not keeper.stage(plan(1), 10).succeeded
    assert (keeper.lease.phase, keeper.lease.generation) == ("committed", 1)
    world.network.fail_after = None
    assert keeper.seconds_until_due() == 5
    world.now += 5
    assert keeper.tick().succeeded  # type: ignore[union-attr]
    assert world.network.state == whole and keeper.tick() is None


def test_restoring_an_old_generation_leaves_the_newer_one(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.commit(1, None)
    keeper.stage(plan(2, flows=()), 10)
    with pytest.raises(LeaseRefusedError, match="newer"):
        keeper.restore(1)
    assert keeper.lease.generation == 2


@pytest.mark.parametrize("verb", ["renew", "commit"])
def test_an_expired_or_unknown_generation_is_not_decided_on(world: World, verb: str) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    with pytest.raises(LeaseRefusedError, match="not in force"):
        getattr(keeper, verb)(2, 10)
    world.now += 11
    with pytest.raises(LeaseRefusedError, match="not in force"):
        getattr(keeper, verb)(1, 10)


def test_a_preview_shows_what_staging_does_to_a_mark(world: World) -> None:
    """A sysctl that was not changed before: what it was belongs into the mark of its bridge."""
    keeper, sysctls = world.keeper(), plan(2).sysctls
    for desired in (plan(1, sysctls=()), plan(2)):
        previewed = keeper.preview(desired)
        assert keeper.stage(desired, 10).changes == previewed.changes
        keeper.commit(desired.generation, None)
    assert sysctls and "bridges" in {change.collection for change in previewed.changes}


def test_a_failing_change_is_undone_and_said(world: World) -> None:
    before = world.network.state
    keeper = world.keeper()
    steps = len(keeper.preview(plan(1)).changes)
    for step in range(1, steps):
        world.network.fail_after = step
        network = world.network
        applied = network.apply

        def once(*asked: Any, apply: Any = applied) -> None:
            try:
                apply(*asked)
            finally:
                world.network.fail_after = None

        network.apply = once  # type: ignore[assignment, method-assign]
        report = keeper.stage(plan(step), 10)
        network.apply = applied  # type: ignore[method-assign]
        assert not report.succeeded and "no such device" in report.refusals[0].what
        assert world.network.state == before
        assert keeper.lease.phase == "idle"


def test_a_restore_that_fails_is_tried_again(world: World) -> None:
    before = world.network.state
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    world.now += 11
    world.network.fail_after = 3
    report = keeper.tick()
    assert report is not None and not report.succeeded
    assert keeper.lease.phase == "failed" and "no such device" in keeper.lease.detail
    assert keeper.stage(plan(2), 10).refusals, "nothing new on top of a broken state"
    world.network.fail_after = None
    assert world.keeper().tick().succeeded  # type: ignore[union-attr]
    assert world.network.state == before


@settings(max_examples=60, deadline=None)
@given(step=st.integers(0, 20), baseline=st.booleans(), restoring=st.booleans())
def test_a_crash_anywhere_comes_back_on_one_whole_state(
    tmp_path_factory: pytest.TempPathFactory, step: int, baseline: bool, restoring: bool
) -> None:
    world = World(tmp_path_factory.mktemp("crash"))
    keeper = world.keeper()
    if baseline:
        keeper.stage(plan(1), 10)
        keeper.commit(1, None)
    whole = world.network.state
    changed = plan(2, flows=(), routes=(), rules=(), queues=plan(1).queues[:2], classifiers=())
    if restoring:
        keeper.stage(changed, 10)
        world.now += 11
    world.network.crash_after = step
    try:
        if restoring:
            keeper.tick()
        else:
            keeper.stage(changed, 10)
    except Crash:
        pass
    world.network.crash_after = None
    world.now += 100
    again = world.keeper()
    again.resume()
    assert world.network.state == whole
    assert again.lease.phase == ("committed" if baseline else "idle")
    assert again.tick() is None


def test_the_disk_has_it_before_anything_is_touched(world: World) -> None:
    world.network.crash_after = 0
    with pytest.raises(Crash):
        world.keeper().stage(plan(1), 10)
    kept = read_kept(world.directory)
    assert kept.lease.phase == "applying"
    assert kept.ledger.nics[0].addresses == ("10.7.0.1/24 scope 0 label nic0",)
    assert kept.ledger.sysctls[0].value == "0"


def test_after_a_reboot_what_is_in_force_is_made_whole(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.commit(1, None)
    whole = world.network.state
    for key in list(world.network.entries):
        if key[0] in ("addresses", "rules", "routes", "classifiers"):
            del world.network.entries[key]
    world.network.nics = BARE
    report = world.keeper().resume()
    assert report is not None and report.succeeded and report.changes
    assert world.network.state == whole


def test_every_change_is_in_the_audit_log(world: World) -> None:
    keeper = world.keeper()
    report = keeper.stage(plan(1), 10)
    keeper.commit(1, None)
    keeper.destroy("test-plan")
    lines = (world.directory / "audit.jsonl").read_text().splitlines()
    assert sum('"event": "stage"' in line for line in lines) == len(report.changes)
    assert any('"event": "commit"' in line for line in lines)
    assert any('"event": "restore"' in line and '"remove"' in line for line in lines)


def test_a_state_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"surprise": 1}')
    with pytest.raises(StoreError, match=r"state\.json"):
        DiskStore(tmp_path).load()


def test_one_agent_per_state_directory(tmp_path: Path) -> None:
    with take_lock(tmp_path):
        with pytest.raises(AlreadyRunningError, match="is running"):
            take_lock(tmp_path)
    take_lock(tmp_path).close()


def test_the_fake_network_holds_what_was_applied(world: World) -> None:
    """Without this, a fake that ignores everything would pass the tests above."""
    world.keeper().stage(plan(1), 10)
    held = {kind.collection for kind in COLLECTIONS} - {"sysctls"}
    assert {name for name, _ in world.network.entries} == held
    assert (
        world.network.entries["rules", canonical(plan(1)).rules[0].key]
        == canonical(plan(1)).rules[0]
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "placewire-test", str(tmp_path)], check=True
    )
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(directory: Path) -> Path:
    """Writes until not one byte fits."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return path


@pytest.mark.network
@pytest.mark.parametrize("way", ["restore", "destroy", "expiry"])
def test_a_full_disk_keeps_nothing_from_being_undone(small_disk: Path, way: str) -> None:
    world = World(small_disk)
    before = world.network.state
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    filler = fill(small_disk)
    if way == "expiry":
        world.now += 11
    undo = {
        "restore": lambda: keeper.restore(1),
        "destroy": lambda: keeper.destroy("test-plan"),
        "expiry": keeper.tick,
    }
    report = undo[way]()
    assert world.network.state == before, "the network is undone all the same"
    assert report is not None and not report.succeeded, "but an agent that starts would not know"
    assert "No space left" in report.refusals[0].what and keeper.lease.phase == "failed"
    assert world.store.load().lease.phase == "staged", "the disk was full indeed"
    filler.unlink()
    due = keeper.seconds_until_due()
    assert due is not None and 0 < due <= 5, "soon, and not at once"
    world.now += due
    report = keeper.tick()
    assert report is not None and report.succeeded
    assert world.store.load().lease.phase == "idle"


@pytest.mark.network
def test_a_disk_that_was_set_read_only_keeps_no_started_agent_from_undoing(
    small_disk: Path,
) -> None:
    world = World(small_disk)
    before = world.network.state
    world.keeper().stage(plan(1), 10)
    take_lock(small_disk).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with take_lock(small_disk):
        with pytest.raises(AlreadyRunningError, match="is running"):
            take_lock(small_disk)
        world.now += 11
        keeper = world.keeper()
        report = keeper.resume()
        assert world.network.state == before
        assert report is not None and "Read-only" in report.refusals[0].what
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        world.now += 5
        report = keeper.tick()
    assert report is not None and report.succeeded
    assert world.store.load().lease.phase == "idle"


def test_a_lease_that_ends_is_not_late_because_something_else_is_retried(world: World) -> None:
    world.keeper().stage(plan(1), 100)
    keeper = world.keeper()
    for key in [key for key in world.network.entries if key[0] == "rules"]:
        del world.network.entries[key]
    world.network.fail_after = 0
    keeper.resume()
    for _ in range(7):
        world.now += 1
        keeper.tick()
    assert keeper.seconds_until_due() == 93


@pytest.mark.network
def test_nothing_is_staged_or_committed_that_a_full_disk_would_forget(small_disk: Path) -> None:
    world = World(small_disk)
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    staged = world.network.state
    filler = fill(small_disk)
    report = keeper.stage(plan(2, flows=()), 10)
    assert not report.succeeded and "No space left" in report.refusals[0].what
    assert world.network.state == staged and keeper.lease.generation == 1
    with pytest.raises(EffectError, match="cannot be saved"):
        keeper.commit(1, None)
    assert keeper.renew(1, 100).expires_unix == 1100.0, "what is in use goes on"
    with take_lock(small_disk):
        pass
    filler.unlink()
    assert keeper.commit(1, None).phase == "committed"


@pytest.mark.network
def test_a_stage_that_cannot_be_noted_is_not_done(small_disk: Path) -> None:
    world = World(small_disk)
    before = world.network.state
    keeper = world.keeper()

    def save_and_fill(kept: Kept, save: Any = world.store.save) -> None:
        save(kept)
        fill(small_disk)

    world.store.save = save_and_fill  # type: ignore[method-assign]
    report = keeper.stage(plan(1), 10)
    assert not report.succeeded and "audit log" in report.refusals[0].what
    assert world.network.touched == 0 and world.network.state == before


def test_the_audit_log_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, audit_bytes=200)
    for number in range(300):
        store.audit([{"number": number, "filler": "x" * 60}])
    files = sorted(tmp_path.glob("audit.jsonl*"))
    assert len(files) == AUDIT_FILES + 1
    assert all(file.stat().st_size < 400 for file in files)
    numbers = [
        json.loads(line)["number"]
        for file in (*(tmp_path / f"audit.jsonl.{n}" for n in range(AUDIT_FILES, 0, -1)), files[0])
        for line in file.read_text().splitlines()
    ]
    assert numbers == list(range(numbers[0], 300)) and len(numbers) > 16


def test_what_keeps_failing_is_tried_less_and_less_often(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    world.now += 11
    world.network.fail_after = 0
    pauses = []
    for _ in range(9):
        keeper.tick()
        pauses.append(keeper.seconds_until_due())
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    world.now += 290
    assert keeper.seconds_until_due() == 10
    world.network.unreadable = True
    keeper.tick()
    failed = (world.directory / "audit.jsonl").read_text().count('"failed"')
    assert failed == 2, "once for each reason"
    world.network.unreadable, world.network.fail_after = False, None
    assert keeper.tick().succeeded  # type: ignore[union-attr]


def test_what_cannot_be_read_is_tried_again_soon(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    world.now += 11
    world.network.unreadable = True
    for _ in range(5):
        keeper.tick()
        assert keeper.lease.phase == "failed" and keeper.seconds_until_due() == 5


@pytest.mark.parametrize("set_by", [-3600.0, 3600.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_setting_the_clock_neither_ends_nor_extends_a_lease(
    world: World, set_by: float, restarted: bool
) -> None:
    before = world.network.state
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    keeper.commit(1, 50)
    keeper.stage(plan(2, flows=()), 10)
    world.clock_off = set_by
    world.now += 9
    assert keeper.tick() is None and keeper.seconds_until_due() == 1
    assert keeper.lease.expires_unix == 1010 + set_by, "as the clock on the wall has it now"
    if restarted:
        keeper = world.keeper()
        assert keeper.resume() is not None and keeper.lease.generation == 2
    world.now += 1
    keeper.tick()
    assert (keeper.lease.phase, keeper.lease.generation) == ("committed", 1)
    world.now += 39
    assert keeper.tick() is None
    world.now += 1
    assert keeper.tick() is not None
    assert world.network.state == before


def test_a_renewal_after_the_clock_was_set_counts_from_now(world: World) -> None:
    keeper = world.keeper()
    keeper.stage(plan(1), 10)
    world.clock_off = 3600.0
    assert keeper.renew(1, 10).expires_unix == 4610.0
    world.now += 9
    assert keeper.tick() is None
    world.now += 1
    assert keeper.tick() is not None
