"""HeteroG's list scheduling and FlexFlow's first in, first out, as schedulers of any placement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.check.check import check
from placewire.optimizer.engines.place import place
from placewire.optimizer.problem import SolveSettings
from placewire.optimizer.published.schedulers.fifo import by_arrival
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path
from placewire.optimizer.rates.allocator import starting_rates
from placewire.optimizer.simulation.simulate import simulate
from tests.drawn_examples import examples
from tests.optimizer.cases import devices_of
from tests.optimizer.published.published_cases import alike, small_problems

FEW = settings(max_examples=examples(60), deadline=None)


def timeline_of(problem, device, priority):
    rates = starting_rates(problem, device) if problem.decides_rates else None
    return simulate(problem, device, priority, None, rates)


# One device runs a, b and c; d (9 s) on the other waits for c. All are ready at 0 but d.
TASKS, EDGES, DEVICE = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 9.0}, {("c", "d"): 1.0}, [0, 0, 0, 1]


def test_list_scheduling_by_hand():
    """Ranks: d 9, c 3 + 1 + 9 = 13, b 2, a 1. So c, b, a: d runs from 4 to 13."""
    problem = alike(TASKS, EDGES, 2)
    device = np.array(DEVICE)
    rank = by_remaining_path(problem, device)
    assert rank.tolist() == [1.0, 2.0, 13.0, 9.0]
    timeline = timeline_of(problem, device, rank)
    assert timeline.order == ((2, 1, 0), (3,))
    assert timeline.step_seconds == pytest.approx(13.0)


def test_a_transfer_counts_only_between_devices():
    problem = alike(TASKS, EDGES, 2)
    assert by_remaining_path(problem, np.zeros(4, dtype=np.int64)).tolist() == [1.0, 2.0, 12.0, 9.0]


def test_first_in_first_out_by_hand():
    """All of a, b and c are ready at 0: by number, a, b, c; d runs from 1 + 2 + 3 + 1 to 16."""
    problem = alike(TASKS, EDGES, 2)
    device = np.array(DEVICE)
    timeline = timeline_of(problem, device, by_arrival(problem, device))
    assert timeline.order == ((0, 1, 2), (3,))
    assert timeline.step_seconds == pytest.approx(16.0)


@FEW
@given(st.data())
def test_ranks_fall_along_every_edge(data):
    problem = data.draw(small_problems())
    rank = by_remaining_path(problem, data.draw(devices_of(problem)))
    source, target, _ = problem.graph.edges
    assert (rank[source] >= rank[target]).all()


@FEW
@given(st.data())
def test_first_in_first_out_runs_in_the_order_of_being_ready(data):
    """In the simulated timeline, under sharings with first-come channels: who starts earlier on a
    device was ready no later."""
    problem = data.draw(small_problems())
    device = data.draw(devices_of(problem))
    timeline = timeline_of(problem, device, by_arrival(problem, device))
    if problem.sharing not in ("strict", "even"):
        return
    graph = problem.graph
    arrival = {(m.tensor, m.destination): m.finish_seconds for m in timeline.messages}
    ready = np.zeros(graph.operator_count)
    for i in range(graph.operator_count):
        for e in graph.input_tensors(i).tolist():
            local = float(timeline.finish[graph.tensor_producer[e]])
            ready[i] = max(ready[i], arrival.get((e, int(device[i])), local))
    for order in timeline.order:
        mine = ready[list(order)]
        assert (np.diff(mine) >= -1e-9).all()


@FEW
@given(st.data())
def test_either_gives_a_placement_that_passes_the_check(data):
    problem = data.draw(small_problems())
    engine = data.draw(st.sampled_from(["m-etf", "heft", "single"]))
    for scheduler in ("list", "fifo"):
        chosen = SolveSettings(scheduler=scheduler, time_limit_seconds=600.0)
        placement = place(problem, engine, chosen)
        assert check(problem.graph, placement) == ()


def test_the_order_of_the_engine_is_replaced_and_nothing_else():
    problem = alike(TASKS, EDGES, 2)
    own = place(problem, "m-etf", SolveSettings())
    other = place(problem, "m-etf", SolveSettings(scheduler="fifo"))
    assert own.operators == other.operators
    assert own.order != other.order
