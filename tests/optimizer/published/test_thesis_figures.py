"""Worked examples of the thesis that are no reduction's: its figure 3.1."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from placewire.optimizer.engines.place import place
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import cluster, full_rates, graph

FIVE_SECONDS = 5_000_000  # bytes, between two servers of `cluster()`
# Its microseconds as seconds: A 5, B 10, C 5, and 5 between devices.
FIGURE_3_1 = Problem(
    graph(
        {"A": 5.0, "B": 10.0, "C": 5.0},
        [("A", ["B"], FIVE_SECONDS), ("A", ["C"], FIVE_SECONDS)],
    ),
    cluster(2),
    model="thesis",
)


def test_figure_3_1_the_parallel_pair_on_two_devices_is_the_optimum():
    steps = {}
    for device in itertools.product((0, 1), repeat=3):
        for first in ("BC", "CB"):
            priority = np.array([2.0, float(first == "BC"), float(first == "CB")])
            timeline = simulate(
                FIGURE_3_1, np.array(device), priority, None, full_rates(FIGURE_3_1)
            )
            steps[device, first] = timeline.step_seconds
    assert steps[(0, 0, 0), "BC"] == 20.0
    assert steps[(0, 0, 1), "BC"] == 15.0, "the middle configuration"
    assert steps[(0, 1, 0), "BC"] == 20.0
    best = [device for (device, _), step in steps.items() if step == min(steps.values())]
    assert min(steps.values()) == 15.0
    assert set(best) == {(0, 0, 1), (1, 1, 0)}


@pytest.mark.parametrize("engine", ["auto", "thesis-p1", "thesis-p2"])
def test_figure_3_1_engines_find_it(engine):
    # `auto` may take all of its time; a program ends when it is solved.
    limit = 10.0 if engine == "auto" else 600.0
    found = place(FIGURE_3_1, engine, SolveSettings(gap=0.0, time_limit_seconds=limit))
    assert found.step_seconds == pytest.approx(15.0, rel=1e-4)
    assert found.operators["A"] == found.operators["B"] != found.operators["C"]
