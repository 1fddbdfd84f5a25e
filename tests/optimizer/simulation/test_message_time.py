"""What a message takes of its two devices, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.engines.place import place
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import cluster, graph
from tests.optimizer.problems import SHARINGS

MS = 1e-3


def timed(problem: Problem, milliseconds: float) -> Problem:
    """The problem where a message takes so long of each of its devices."""
    takes = {"message_seconds": milliseconds * MS}
    return replace(problem, cluster=problem.cluster.model_copy(update=takes))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_the_sender_and_the_first_reader_last_longer(sharing):
    """A sends to two servers, R and S read on one of them: A takes 2 x 0.5 ms more, R 0.5 ms, and
    1000 bytes take 1 ms on the wire to each server where nobody else sends."""
    work = graph(
        {"A": MS, "B": MS, "R": MS, "S": MS, "Q": MS},
        [("A", ["S", "R", "Q"], 100)],
    )
    problem = timed(Problem(work, cluster(3), sharing), 0.5)
    device = np.array([0, 0, 1, 1, 2])
    rates = np.full((3, 3, 1), 1.0e9) if problem.decides_rates else None
    timeline = simulate(problem, device, None, None, rates)
    lasts = (timeline.finish - timeline.start) / MS
    assert lasts == pytest.approx([2.0, 1.0, 1.5, 1.0, 1.5])
    assert timeline.start[1] == pytest.approx(timeline.finish[0])
    assert all(m.queued_seconds == pytest.approx(2 * MS) for m in timeline.messages)


def test_what_only_orders_operators_takes_nothing():
    work = graph({"A": MS, "R": MS}, [("A", ["R"], 0)])
    timeline = simulate(timed(Problem(work, cluster(2), "even"), 0.5), np.array([0, 1]))
    assert timeline.step_seconds == pytest.approx(2 * MS)


@pytest.mark.parametrize("model", ["thesis", "contended"])
def test_only_our_own_model_has_it(model):
    work = graph({"A": MS, "R": MS}, [("A", ["R"], 100)])
    problem = Problem(work, cluster(2), "even", model)
    plain, with_it = (
        simulate(timed(problem, each), np.array([0, 1])).step_seconds for each in (0.0, 0.5)
    )
    assert with_it - plain == pytest.approx(MS if model == "contended" else 0.0)


def test_where_messages_cost_more_than_they_gain_one_device_is_taken():
    """Two chains of 1 ms that meet: apart they take 1.1 ms and what their message takes."""
    work = graph({"A": MS, "B": MS, "C": 0.1 * MS}, [("A", ["C"], 1), ("B", ["C"], 1)])
    problem = Problem(work, cluster(2), "even")
    settings = SolveSettings(moves=200)
    apart, together = (place(timed(problem, each), "auto", settings) for each in (0.1, 0.6))
    assert len(set(apart.operators.values())) == 2
    assert apart.step_seconds == pytest.approx(1.302 * MS, rel=1e-3)
    assert len(set(together.operators.values())) == 1
    assert together.step_seconds == pytest.approx(2.1 * MS)
