"""Schedules of pipelines beside the papers and torch.distributed.pipelining."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from placewire.optimizer.peers.pipelines import Schedule, Slot, schedules

SIZES = [(d, m) for d in (2, 3, 4, 8) for m in (2, 3, 4, 8, 12, 16, 24)]
ALL = [schedule for devices, m in SIZES for schedule in schedules(devices, m)]
DIVISIBLE = [(d, m) for d, m in SIZES if m % d == 0]


def micro_batches(schedule: Schedule) -> int:
    return 1 + max(m for _, _, m in schedule.order[0])


def of(name: str, devices: int, count: int) -> list[Schedule]:
    return [schedule for schedule in schedules(devices, count) if schedule.name == name]


def test_what_each_number_of_micro_batches_allows() -> None:
    assert not list(schedules(1, 8))
    names = {count: [(one.name, one.pieces) for one in schedules(4, count)] for count in (2, 6, 8)}
    assert names[2] == [("gpipe", 1)]
    assert names[6] == [("gpipe", 1), ("1f1b", 1)]
    interleaved = [("interleaved-1f1b", pieces) for pieces in (2, 3, 4)]
    assert names[8] == [*names[6], *interleaved]


def test_every_device_runs_each_half_of_each_of_its_pieces_once() -> None:
    for schedule in ALL:
        slots = {
            (forward, piece, m)
            for forward in (True, False)
            for piece in range(schedule.pieces)
            for m in range(micro_batches(schedule))
        }
        assert len(schedule.order) == schedule.stages
        for row in schedule.order:
            assert len(row) == len(slots) and set(row) == slots


def most_held(row: Sequence[Slot]) -> int:
    """How many forward halves wait for their backward halves at once."""
    held = most = 0
    for forward, _, _ in row:
        held += 1 if forward else -1
        most = max(most, held)
    return most


def test_1f1b_holds_no_more_forward_halves_than_stages_and_gpipe_holds_all() -> None:
    """Narayanan et al. 2021: at most as many as stages are left, so device k of d holds d - k."""
    for devices, count in SIZES:
        (gpipe,) = of("gpipe", devices, count)
        assert {most_held(row) for row in gpipe.order} == {count}
        for one in of("1f1b", devices, count):
            assert [most_held(row) for row in one.order] == list(range(devices, 0, -1))


def turns(schedule: Schedule) -> int:
    """How many turns a step takes where each half of a piece takes one, and sends take none. Fails
    where devices wait for each other for ever."""
    ranges = schedule.stages * schedule.pieces
    ended: dict[tuple[bool, int, int], int] = {}
    free, at = [0] * schedule.stages, [0] * schedule.stages
    total = sum(map(len, schedule.order))
    while len(ended) < total:
        before = len(ended)
        for d, row in enumerate(schedule.order):
            while at[d] < len(row):
                forward, piece, m = row[at[d]]
                stage = piece * schedule.stages + d
                needed = (True, stage - 1, m) if forward else (False, stage + 1, m)
                if not forward and stage == ranges - 1:
                    needed = (True, stage, m)
                if needed[1] >= 0 and needed not in ended:
                    break
                free[d] = max(free[d], ended.get(needed, 0)) + 1
                ended[forward, stage, m] = free[d]
                at[d] += 1
        assert len(ended) > before, f"{schedule.name} waits for ever"
    return max(free)


def test_bubbles_are_those_of_the_papers() -> None:
    """A device idles for d - 1 forward and backward halves, over v pieces of which each takes 1 / v
    as long (Narayanan et al. 2021, section 2.2; Huang et al. 2019, section 2.3)."""
    for schedule in ALL:
        d, v, m = schedule.stages, schedule.pieces, micro_batches(schedule)
        assert turns(schedule) == 2 * m * v + 2 * (d - 1), schedule


def recorded(kind: type, devices: int, rank: int, count: int) -> list[Slot]:
    """What the loop of a schedule of torch runs; the stage only writes down what it is told."""
    ran: list[Slot] = []
    stage = MagicMock(stage_index=rank)
    for what in ("fwd_recv", "fwd_send", "bwd_recv", "bwd_send"):
        getattr(stage, f"get_{what}_ops").return_value = []
    stage.forward_one_chunk.side_effect = lambda m, *_, **__: ran.append((True, 0, m))
    stage.backward_one_chunk.side_effect = lambda m, **__: ran.append((False, 0, m))
    schedule = MagicMock(_num_stages=devices, _n_microbatches=count, _stage=stage)
    schedule._has_backward = True
    schedule._check_inputs.return_value = ([()] * count, [{}] * count)
    kind._step_microbatches(schedule)  # type: ignore[attr-defined]
    return ran


@pytest.mark.parametrize(("devices", "count"), SIZES)
def test_gpipe_and_1f1b_run_in_torch_s_order(devices: int, count: int) -> None:
    """Compared with what `_step_microbatches` of ScheduleGPipe and Schedule1F1B runs on each rank;
    `_get_pipeline_order`, for pictures, numbers the last rank's forward halves from 1."""
    kinds = {"gpipe": torch_schedules.ScheduleGPipe, "1f1b": torch_schedules.Schedule1F1B}
    for name, kind in kinds.items():
        for schedule in of(name, devices, count):
            for rank, row in enumerate(schedule.order):
                assert list(row) == recorded(kind, devices, rank, count), (name, rank)


@pytest.mark.parametrize(("devices", "count"), DIVISIBLE)
def test_interleaved_1f1b_runs_in_torch_s_order(devices: int, count: int) -> None:
    """Compared with what `_calculate_single_rank_operations` of ScheduleInterleaved1F1B gives each
    rank, but for its turns in which a rank does nothing."""
    kind = torch_schedules.ScheduleInterleaved1F1B
    for schedule in of("interleaved-1f1b", devices, count):
        rounds = max(1, count // devices)
        given = SimpleNamespace(
            n_local_stages=schedule.pieces,
            pp_group_size=devices,
            _n_microbatches=count,
            microbatches_per_round=count // rounds,
        )
        for rank, row in enumerate(schedule.order):
            actions = kind._calculate_single_rank_operations(given, rank)  # type: ignore[arg-type]
            expected = []
            for one in filter(None, actions):
                forward = one.computation_type == torch_schedules._ComputationType.FORWARD
                expected.append((forward, one.stage_index // devices, one.microbatch_index))
            assert list(row) == expected, (schedule.pieces, rank)
