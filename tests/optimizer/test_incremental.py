"""Simulating again only where a move matters gives what simulating everything gives."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases import clusters, devices_of, graphs
from optimizer.engines.neighbourhood import make_neighbourhood
from optimizer.problem import Problem
from optimizer.sharing import rates_in_force
from optimizer.simulate import recorded_priority


class _Walk:
    """A schedule under even sharing, changed move by move."""

    def __init__(self, problem: Problem, device: np.ndarray) -> None:
        from optimizer.kernels.incremental import consumer_slots, new_schedule, new_scratch
        from optimizer.kernels.tables import make_tables

        self.tables = make_tables(problem)
        self.rates = rates_in_force(problem, None)
        self.hood = make_neighbourhood(problem)
        self.device, self.priority = device, recorded_priority(problem)
        n, devices, rails = len(device), len(self.tables.server), self.rates.shape[2]
        self.slots = consumer_slots(self.tables)
        self.old, self.new = (
            new_schedule(n, len(self.tables.inputs), devices, rails) for _ in range(2)
        )
        self.scratch = new_scratch(n, devices, rails)
        self.channels = self.used(device)
        self.turn = 0

    def used(self, device: np.ndarray) -> np.ndarray:
        from optimizer.kernels.anneal_held import used_channels

        return used_channels(self.tables, device, self.rates, False)

    def all(self) -> float:
        from optimizer.kernels.incremental import schedule_all

        self.turn += 1
        return schedule_all(
            self.tables, self.slots, self.device, self.priority, self.channels, self.old,
            self.scratch, self.turn,
        )  # fmt: skip

    def from_nothing(self, device: np.ndarray, priority: np.ndarray):
        from optimizer.kernels.schedule import by_priority

        n = len(device)
        start, finish, sent = np.empty(n), np.empty(n), np.empty(len(self.tables.producer))
        position = np.empty(n, dtype=np.int64)
        step = by_priority(
            self.tables, device, priority, self.used(device), start, finish, sent, position
        )
        return step, start, finish


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_resumed_simulation_equals_a_whole_one(data):
    from optimizer.kernels.incremental import first_affected, keep, resume
    from optimizer.kernels.proposals import KINDS, Guide, critical_path, propose

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
        if to[0] < 0:
            priority[op[0]] = urgent
        else:
            device[op[:count]] = to[:count]
        channels = walk.used(device)
        if (channels != walk.channels).any():
            first = 0
        load = np.bincount(device, weights=problem.seconds[np.arange(n), device], minlength=devices)
        step, begin, until = resume(
            walk.tables, walk.slots, np.zeros(n), device, priority, channels, old, new,
            walk.scratch, load, op, count, first, np.inf, walk.turn,
        )  # fmt: skip
        wanted, start, finish = walk.from_nothing(device, priority)
        assert step == wanted
        if data.draw(st.booleans()):
            keep(walk.tables, walk.slots, old, new, begin, until)
            walk.device, walk.priority, walk.channels = device, priority, channels
            assert (old.start == start).all() and (old.finish == finish).all()
            assert (old.order[old.place] == np.arange(n)).all()
        else:
            # What is given up early would have exceeded the limit.
            walk.turn += 1
            limit = wanted * 0.9
            step, _, _ = resume(
                walk.tables, walk.slots, np.zeros(n), device, priority, channels, old, new,
                walk.scratch, load, op, count, first, limit, walk.turn,
            )  # fmt: skip
            assert step == np.inf or wanted <= limit
