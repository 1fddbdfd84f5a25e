"""Simulating again only where a move matters gives what simulating everything gives."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placewire.optimizer.engines.neighbourhood import make_neighbourhood
from placewire.optimizer.kernels.annealing.affected import first_affected
from placewire.optimizer.kernels.annealing.anneal_held import used_channels
from placewire.optimizer.kernels.annealing.proposals import KINDS, Guide, critical_path, propose
from placewire.optimizer.kernels.annealing.relocation import (
    changed,
    new_occupied,
    relocate,
    touched,
)
from placewire.optimizer.kernels.simulation.first_come import NOT_CHANGED, run_first_come
from placewire.optimizer.kernels.simulation.marked_schedule import (
    consumer_slots,
    keep,
    new_schedule,
    new_scratch,
    schedule_all,
)
from placewire.optimizer.kernels.simulation.occupation import occupation
from placewire.optimizer.kernels.tables import tables_of
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import recorded_priority
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, clusters, devices_of, graphs, layered


@numba.njit
def _seed_compiled(seed: int) -> None:
    """Compiled code draws from a generator of its own."""
    np.random.seed(seed)


class _Walk:
    """A schedule under even sharing, changed move by move."""

    def __init__(self, problem: Problem, device: np.ndarray) -> None:
        self.tables = tables_of(problem)
        self.rates = problem.rates_in_force(None)
        self.hood = make_neighbourhood(problem)
        self.device, self.priority = device, recorded_priority(problem)
        n, devices, rails = len(device), len(self.tables.server), self.rates.shape[2]
        self.slots = consumer_slots(self.tables)
        self.old, self.new = (
            new_schedule(n, len(self.tables.inputs), devices, rails) for _ in range(2)
        )
        self.scratch = new_scratch(n, devices, rails)
        self.channels = self.used(device)
        self.occupied = new_occupied(self.tables, device)
        self.turn = 0

    def used(self, device: np.ndarray) -> np.ndarray:
        return used_channels(self.tables, device, self.rates, False)

    def all(self) -> float:
        self.turn += 1
        return schedule_all(
            self.tables, self.occupied.lasts, self.slots, self.device, self.priority, self.channels,
            self.old, self.scratch, self.turn,
        )  # fmt: skip

    def changed(self, device: np.ndarray, priority: np.ndarray, channels: np.ndarray, *rest):
        """(step, first event run, first event not run) of a changed placement."""
        return run_first_come(
            self.tables, self.occupied.lasts, device, priority, channels, False, None, None, None,
            None, None, None, self.slots, np.zeros(len(device)), self.old, self.new, self.scratch,
            self.occupied.load, *rest,
        )  # fmt: skip

    def from_nothing(self, device: np.ndarray, priority: np.ndarray):
        n = len(device)
        start, finish, sent = np.empty(n), np.empty(n), np.empty(len(self.tables.producer))
        position = np.empty(n, dtype=np.int64)
        step, _, _ = run_first_come(
            self.tables, occupation(self.tables, device), device, priority, self.used(device),
            False, None, start, finish, sent, position, None, *NOT_CHANGED,
        )  # fmt: skip
        return step, start, finish


def old_places(walk: _Walk, others: int) -> list[int]:
    """The events of the first `others` operators that a move touched."""
    places: list[int] = walk.old.place[walk.occupied.operators[:others]].tolist()
    return places


def ready_by_order(walk: _Walk) -> np.ndarray:
    """For each event, the last event that starts a producer of its operator's inputs."""
    tables, old = walk.tables, walk.old
    last = [
        max((int(old.place[tables.producer[e]]) for e in inputs.tolist()), default=-1)
        for inputs in np.split(tables.inputs, tables.inputs_start[1:-1])
    ]
    return np.array(last)[old.order]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_resumed_simulation_equals_a_whole_one(data):
    _seed_compiled(data.draw(st.integers(0, 1000)))
    problem = Problem(data.draw(graphs(largest=60)), data.draw(clusters()), "even")
    walk = _Walk(problem, data.draw(devices_of(problem)))
    walk.all()
    n, devices = len(walk.device), len(walk.tables.server)
    op, to, stamp = np.empty(n, np.int64), np.empty(n, np.int64), np.full(n, -1)
    old, new = walk.old, walk.new
    kinds = data.draw(st.lists(st.integers(0, KINDS - 1), min_size=5, max_size=30))
    for kind in kinds:
        path, reason = critical_path(
            walk.tables, walk.device, old.order, old.start, old.finish, old.input_at
        )
        guide = Guide(old.order, old.place, path, reason)
        walk.turn += 1
        count, urgent = propose(
            walk.tables, walk.hood, guide, walk.device, walk.priority, kind, 0, n, op, to, stamp,
            walk.turn,
        )  # fmt: skip
        if count == 0:
            continue
        first = first_affected(walk.tables, old, walk.device, walk.priority, op, to, count, urgent)
        device, priority = walk.device.copy(), walk.priority.copy()
        occupied, was = walk.occupied, walk.device[op[:count]].copy()
        tensors, every = touched(walk.tables, occupied, op, count, walk.turn)
        others = count
        if to[0] < 0:
            priority[op[0]] = urgent
        else:
            relocate(walk.tables, occupied, device, op, to, count, tensors, every)
            others = changed(occupied, count, every)
            first = min(first, *old_places(walk, others))
            assert (occupied.lasts == occupation(walk.tables, device)).all()
        channels = walk.used(device)
        if (channels != walk.channels).any():
            first = 0
        work = np.bincount(device, weights=occupied.lasts, minlength=devices)
        assert occupied.load == pytest.approx(work)
        step, begin, until = walk.changed(
            device, priority, channels, occupied.operators, others, first, np.inf, walk.turn
        )
        wanted, start, finish = walk.from_nothing(device, priority)
        assert step == wanted
        if data.draw(st.booleans()):
            keep(walk.tables, walk.slots, old, new, begin, until)
            walk.device, walk.priority, walk.channels = device, priority, channels
            assert (old.start == start).all() and (old.finish == finish).all()
            assert (old.order[old.place] == np.arange(n)).all()
            assert (old.ready == ready_by_order(walk)).all()
        else:
            # A run that ended early would have exceeded the limit.
            walk.turn += 1
            limit = wanted * 0.9
            step, _, _ = walk.changed(
                device, priority, channels, occupied.operators, others, first, limit, walk.turn
            )
            assert step == np.inf or wanted <= limit
            if to[0] >= 0:
                relocate(walk.tables, occupied, device, op, was, count, tensors, every)
                assert (occupied.lasts == occupation(walk.tables, walk.device)).all()


@pytest.mark.parametrize("message_seconds", [0.0, 0.0005])
def test_a_thousand_kept_moves_leave_the_schedule_as_from_nothing(message_seconds):
    """On a graph of many marks, where most moves stop being simulated long before its end."""
    made = layered(40, 3, seed=1)
    where = cluster(3, (1e9,)).model_copy(update={"message_seconds": message_seconds})
    problem = Problem(made, where, "even")
    n = made.operator_count
    random = np.random.default_rng(0)
    walk = _Walk(problem, random.integers(0, 3, n))
    walk.all()
    stopped = 0
    for turn in range(2, 1_002):
        op, to = random.integers(0, n, 1), random.integers(0, 3, 1)
        if to[0] == walk.device[op[0]]:
            continue
        first = first_affected(walk.tables, walk.old, walk.device, walk.priority, op, to, 1, 0.0)
        device = walk.device.copy()
        occupied = walk.occupied
        counts = touched(walk.tables, occupied, op, 1, turn)
        relocate(walk.tables, occupied, device, op, to, 1, *counts)
        others = changed(occupied, 1, counts[1])
        first = min(first, *old_places(walk, others))
        channels = walk.used(device)
        if (channels != walk.channels).any():
            first = 0
        step, begin, until = walk.changed(
            device, walk.priority, channels, occupied.operators, others, first, np.inf, turn
        )
        keep(walk.tables, walk.slots, walk.old, walk.new, begin, until)
        walk.device, walk.channels = device, channels
        stopped += until < n
        assert (walk.old.ready == ready_by_order(walk)).all()
        assert step == walk.from_nothing(device, walk.priority)[0]
    assert stopped > 50
