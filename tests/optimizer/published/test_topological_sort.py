"""Tests the sort of the thesis, section 3.3, by worked examples."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from placewire.optimizer.cli import main
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.formulations.engine import solve
from placewire.optimizer.published.formulations.errors import FormulationRefusedError
from placewire.optimizer.published.formulations.papers import PaperName, formulate
from placewire.optimizer.published.formulations.topological_sort import depth_first_sort
from tests.optimizer.cases import cluster, graph, graphs
from tests.optimizer.problems import drawn

EXACT = SolveSettings(gap=0.0, time_limit_seconds=60.0)


def sorted_ids(made: OperatorGraph) -> list[str]:
    return [made.ids[i] for i in depth_first_sort(made).tolist()]


def test_figure_3_1_has_two_sorts_and_the_search_leaves_the_first_branch_first():
    """A before B and C: Kahn's algorithm takes B first. The search leaves B, then C, then A."""
    made = graph({"A": 5.0, "B": 10.0, "C": 5.0}, [("A", ["B"], 1), ("A", ["C"], 1)])
    assert [made.ids[i] for i in made.topological_order] == ["A", "B", "C"]
    assert sorted_ids(made) == ["A", "C", "B"]


def test_the_textbook_example():
    """Cormen, Leiserson, Rivest, Stein: Introduction to Algorithms, figure 22.7: what is put on
    before what, with the times at which the search leaves each: socks 18 ... jacket 4."""
    before = {
        "shirt": ["tie", "belt"], "tie": ["jacket"], "jacket": [], "belt": ["jacket"], "watch": [],
        "undershorts": ["pants", "shoes"], "pants": ["shoes", "belt"], "shoes": [],
        "socks": ["shoes"],
    }  # fmt: skip
    made = graph(
        dict.fromkeys(before, 1.0), [(one, [other], 1) for one in before for other in before[one]]
    )
    assert sorted_ids(made) == [
        "socks", "undershorts", "pants", "shoes", "watch", "shirt", "belt", "tie", "jacket",
    ]  # fmt: skip


def test_a_chain_of_many_operators_needs_no_deep_stack():
    count = 20_000
    made = graph({f"o{k}": 1.0 for k in range(count)},
                 [(f"o{k}", [f"o{k + 1}"], 1) for k in range(count - 1)])  # fmt: skip
    assert depth_first_sort(made).tolist() == list(range(count))


@drawn(150)
@given(graphs(12))
def test_every_operator_comes_once_and_after_its_inputs(made):
    order = depth_first_sort(made)
    position = np.argsort(order)
    assert sorted(order.tolist()) == list(range(made.operator_count))
    source, target, _ = made.edges
    assert (position[source] < position[target]).all()


# Two branches behind A; on the device of B and C the sort decides whether D waits for C.
_BRANCHES = graph(
    {"A": 1.0, "B": 1.0, "C": 9.0, "D": 9.0},
    [("A", ["B"], 1), ("A", ["C"], 100_000_000), ("B", ["D"], 1_000_000)],
    colocation={"B": "together", "C": "together"},
)


def test_the_thesis_programs_run_in_it_and_quickps_in_the_recorded_sort():
    problem = Problem(_BRANCHES, cluster(2), "strict")
    sorts: dict[PaperName, str] = {"thesis-p1": "ACBD", "thesis-p3": "ACBD", "icc-p1": "ABCD"}
    for name, expected in sorts.items():
        order = formulate(problem, name).instance.order
        assert "".join(_BRANCHES.ids[i] for i in order) == expected, name
    # Under model thesis every placement runs in the recorded sort, and so the program decides.
    under_thesis = replace(problem, model="thesis")
    assert formulate(under_thesis, "thesis-p1").instance.order.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("solver", ["highs", "gurobi", "cp-sat"])
def test_the_sort_decides_the_optimum_and_the_placements_order(solver):
    """A, B and C stay together: C's input takes 100 s to travel. In the recorded sort B runs before
    C, so that D on the other device has its input after 3 s: 12 s. Depth-first B waits for C, and
    nothing is better than all on one device: 20 s."""
    steps = {}
    for sort in ("recorded", "depth-first"):
        heard: list[Any] = []
        settings = replace(EXACT, options={"solver": solver, "sort": sort})
        problem = Problem(_BRANCHES, cluster(2), "strict")
        solution = solve("thesis-p1", problem, settings, heard.append)
        steps[sort] = heard[-1].incumbent_seconds
        urgent_first = np.argsort(-solution.priority)
        expected = "ABCD" if sort == "recorded" else "ACBD"
        assert "".join(_BRANCHES.ids[i] for i in urgent_first) == expected
        placement = place(problem, "thesis-p1", settings)
        ran = [operator for one in placement.order.values() for operator in one if operator != "D"]
        assert "".join(ran) == ("ABC" if sort == "recorded" else "ACB")
    assert steps["recorded"] == pytest.approx(12.0, rel=1e-6)
    assert steps["depth-first"] == pytest.approx(20.0, rel=1e-6)


def test_a_sort_that_the_scoring_model_does_not_have_is_refused():
    """Model thesis runs every placement in the recorded sort: it would score another one."""
    under_thesis = Problem(_BRANCHES, cluster(2), "strict", "thesis")
    asked = replace(EXACT, options={"sort": "depth-first"})
    with pytest.raises(FormulationRefusedError, match="leave --sort out") as refused:
        solve("thesis-p1", under_thesis, asked)
    assert "--model contended" in str(refused.value)
    recorded = replace(EXACT, options={"sort": "recorded"})
    assert place(under_thesis, "thesis-p1", recorded).step_seconds == pytest.approx(12.0, rel=1e-6)


def test_a_comparison_takes_a_sort(tmp_path):
    save_graph(_BRANCHES, tmp_path / "branches.json")
    (tmp_path / "two.json").write_text(cluster(2).model_dump_json())
    own = []
    for sort in ("recorded", "depth-first"):
        out = tmp_path / sort
        command = ["compare", tmp_path / "branches.json", "--cluster", tmp_path / "two.json",
                   "--engines", "thesis-p1", "--sort", sort, "--out", out]  # fmt: skip
        assert main([str(word) for word in command]) == 0
        (row,) = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
        assert row["sort"] == sort
        own.append(row["own_found"][-1][1])
    assert own == [pytest.approx(12.0, rel=1e-6), pytest.approx(20.0, rel=1e-6)]
