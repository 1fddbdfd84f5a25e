"""Every reduction on every published graph: a placement through it passes the check, in seconds."""

from __future__ import annotations

import time

import pytest

from benchmarks.graphs import Published, published
from placewire.optimizer.check.check import check
from placewire.optimizer.engines.place import place
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.reductions.chain import reduce_by_name
from placewire.optimizer.reductions.reduction import REDUCTIONS
from placewire.optimizer.reductions.refusals import ReductionRefusedError

GRAPHS = list(published())

pytestmark = pytest.mark.skipif(
    not GRAPHS, reason="the published graphs are not beside the project"
)


def problem_of(found: Published) -> Problem:
    return Problem(
        found.graph, found.cluster, model="msr" if found.format == "msr" else "contended"
    )


def refuses(name: str, found: Published) -> bool:
    """Whether a reduction refuses a graph: spotlight needs ids that are paths, which no published
    graph has; gcof needs operator types, which only graphs made from ONNX models have."""
    typed = "OperatorGraphs" in found.name
    return name == "spotlight" or (name.startswith("gcof-") and not typed)


@pytest.mark.parametrize("name", REDUCTIONS.names)
def test_every_published_graph_is_reduced_or_refused_in_seconds(name: str) -> None:
    for found in GRAPHS:
        problem = problem_of(found)
        if refuses(name, found):
            with pytest.raises(ReductionRefusedError):
                reduce_by_name(problem, name)
            continue
        reduce_by_name(problem, name)  # compiled by now
        began = time.process_time()
        small, _, _ = reduce_by_name(problem, name)
        # A bound against quadratic loops, not a measurement.
        assert time.process_time() - began < 20, found.name
        assert small.graph.operator_count <= found.graph.operator_count


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(set(REDUCTIONS.names) - {"spotlight"}))
def test_placements_of_published_graphs_through_a_reduction_hold(name: str) -> None:
    placed = 0
    taken = [found for found in GRAPHS if not refuses(name, found)]
    for found in taken:
        problem = problem_of(found)
        try:
            placement = place(problem, "heft", SolveSettings(), name)
        except InfeasibleError as error:
            assert "memory" in str(error)  # HEFT packs as it comes, and one graph fits nowhere
            continue
        assert check(problem.graph, placement) == ()
        placed += 1
    assert placed >= len(taken) // 2
