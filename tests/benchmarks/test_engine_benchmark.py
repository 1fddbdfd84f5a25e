"""What `make bench-engine` reads from searches: when a plan was first good, and fine beside coarse
graphs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.engine import certified, fine
from benchmarks.engine.measured import Result
from placewire.optimizer.placement import save_placement
from placewire.optimizer.problem import Problem
from tests.benchmarks.test_elsewhere import FAST, GRAPH, two
from tests.optimizer.check.checked_placements import placement_of

# (seconds, incumbent, bound): the bound rises, the incumbent falls.
TRACE = ((0.5, 10.0, 6.0), (1.0, 8.0, 6.0), (2.0, 7.7, 6.5), (4.0, 7.7, 7.0), (9.0, 7.2, 7.0))


def searched(trace=TRACE) -> Result:
    return Result(
        startup_seconds=0.75, trace=trace, engine_seconds=9.5, wall_seconds=10.5,
        peak_memory_bytes=0, file="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bound", "gap", "before", "seconds"),
    [
        (7.0, 0.10, 0.0, "2.00"), (7.0, 0.10, 0.75, "2.75"), (None, 0.10, 0.0, "4.00"),
        (None, 0.03, 0.0, "9.00"), (7.0, 0.01, 0.0, "-"),
    ],
)  # fmt: skip
def test_a_plan_is_first_within_a_gap_of_the_last_bound_or_of_the_one_known_then(
    bound, gap, before, seconds
):
    assert certified.first_within(searched(), bound, gap, before) == seconds


def test_a_search_without_a_plan_yet_is_within_no_gap():
    nothing = searched(((0.5, float("inf"), 7.0), (1.0, 7.0, 7.0)))
    assert certified.first_within(nothing, 7.0, 0.10) == "1.00"


def with_graphs(monkeypatch):
    """Decomposed ones have 900 operators, captured ones 90."""

    def captured_file(name, *, decompose):
        return Path(f"{name}-decomposed" if decompose else name)

    def load_graph(file):
        return SimpleNamespace(operator_count=900 if "decomposed" in file.name else 90)

    monkeypatch.setattr(fine, "captured_file", captured_file)
    monkeypatch.setattr(fine, "load_graph", load_graph)


@pytest.mark.parametrize("kind", ["decomposed", "captured"])
def test_a_search_that_is_refused_is_a_row_with_the_refusal(monkeypatch, tmp_path, kind):
    problem = Problem(GRAPH, two(FAST), "strict")
    file = tmp_path / "placement.json"
    save_placement(placement_of(problem, [0, 0, 0]), file)

    def solve(ask):
        if ("decomposed" in ask.graph.name) == (kind == "decomposed"):
            return replace(searched(()), refusal="InfeasibleError: no placement fits")
        return replace(searched(), file=str(file))

    monkeypatch.setattr(fine, "solve", solve)
    with_graphs(monkeypatch)
    (table,) = fine.tables(None)
    assert len(table.rows) == 6 and {len(row) for row in table.rows} == {len(table.columns)}
    own, other = table.rows[0][1:10], table.rows[0][10:]
    if kind == "decomposed":
        assert own == ["refused", *["-"] * 8] and other == ["90", "3000", "-"]
    else:
        assert own[:2] == ["3000", "3000"] and other == ["90", "-", "-"]
    told = f"alexnet (900), 20, 30, {kind}: InfeasibleError: no placement fits"
    assert told in table.notes and len([one for one in table.notes if "Infeasible" in one]) == 6


def test_a_fine_graph_stands_beside_the_coarser_one_in_the_same_time(monkeypatch):
    asked = []

    def solve(ask):
        asked.append(ask)
        fine_graph, bert = "decomposed" in ask.graph.name, "bert" in ask.graph.name
        placement = SimpleNamespace(
            bound_seconds=7.0, gap=0.0278,
            step_seconds=7.2 if fine_graph else 4.8, single_device_seconds=None if bert else 12.0,
        )  # fmt: skip
        return SimpleNamespace(**vars(searched()), placement=placement)

    monkeypatch.setattr(fine, "solve", solve)
    with_graphs(monkeypatch)
    (table,) = fine.tables(None)
    found = ["7200", "7000", "2.8%", "2.00", "2.75", "9.00", "9.5", "4.00", "90", "4800", "1.50"]
    assert table.rows[0] == ["alexnet (900), 20, 30", "1.2e+04", *found]
    assert table.rows[-1] == ["bert (900), 160, 60", "-", *found]
    assert len(table.rows) == 6 and {len(row) for row in table.rows} == {len(table.columns)}
    limits = {
        ask.graph.name: ask.time_limit for ask in asked if ask.cluster.nic_rates.max() == 160e9
    }
    assert limits == {
        "alexnet-decomposed": 30.0, "alexnet": 30.0, "vgg16-decomposed": 30.0, "vgg16": 30.0,
        "bert-decomposed": 60.0, "bert": 60.0,
    }  # fmt: skip
    assert all((ask.model, ask.sharing, ask.moves) == ("thesis", "strict", None) for ask in asked)
    assert all(ask.cluster.nic_rates.shape == (4, 3) for ask in asked)
    assert sum(ask.time_limit for ask in asked) <= 0.5 * 20 * 60, "the item has twenty minutes"
