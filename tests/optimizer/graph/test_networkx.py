"""networkx at the edge: out and in again is the same graph."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.graph.operator_graph import (
    GraphError,
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.published.importers.networkx_graph import from_networkx, to_networkx
from tests.drawn_examples import examples


@st.composite
def _graphs(draw: st.DrawFn) -> OperatorGraph:
    count = draw(st.integers(1, 8))
    operators = [
        OperatorRow(
            id=f"op{k}",
            type=draw(st.sampled_from(["mm", "relu"])),
            seconds={"cpu": draw(st.floats(0, 5)), "gpu": 1.0},
            weight_bytes=draw(st.integers(0, 9)),
            colocation=draw(st.sampled_from([None, "0"])),
        )
        for k in range(count)
    ]
    tensors = []
    for k in range(count - 1):
        for _ in range(draw(st.integers(0, 2))):
            later = st.integers(k + 1, count - 1)
            chosen = sorted(draw(st.sets(later, min_size=1)))
            size = draw(st.integers(0, 99))
            tensors.append(TensorRow(f"op{k}", tuple(f"op{c}" for c in chosen), size))
    return build_graph(operators, tensors, device_types=["cpu", "gpu"])


@settings(max_examples=examples(50), deadline=None)
@given(_graphs())
def test_out_and_in_again_is_the_same_graph(graph: OperatorGraph) -> None:
    again = from_networkx(to_networkx(graph))
    assert (again.structure_hash, again.profile_digest) == (
        graph.structure_hash,
        graph.profile_digest,
    )


def test_what_is_no_operator_graph_is_refused_by_name() -> None:
    plain = networkx.DiGraph([("a", "b")])
    with pytest.raises(GraphError, match="node 'a'"):
        from_networkx(plain)
    for name in "ab":
        plain.nodes[name].update(type="mm", seconds={"cpu": 1.0})
    with pytest.raises(GraphError, match="'a' -> 'b' has no 'tensors'"):
        from_networkx(plain)
