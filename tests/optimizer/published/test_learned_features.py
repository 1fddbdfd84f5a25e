"""HSDAG's nodes, features and groups, worked by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.engines.refusals import OutOfTimeError
from placewire.optimizer.problem import InfeasibleError, Problem
from placewire.optimizer.published.engines.shared.deadline import Deadline
from placewire.optimizer.published.learned.features import (
    POSITION_NUMBERS,
    degrees,
    features,
    fractal_dimensions,
    positional_encoding,
    shapes,
    unknown_types,
    vocabulary_of,
)
from placewire.optimizer.published.learned.nodes import chained_units, units
from placewire.optimizer.published.learned.parsing import groups, strongest_edges
from placewire.optimizer.published.learned.settings import Feature
from tests.optimizer.cases import cluster, graph

NO_END = Deadline("hsdag", math.inf)


def path(count: int) -> Problem:
    """a -> b -> c …"""
    names = [chr(ord("a") + k) for k in range(count)]
    edges = [(a, [b], 8) for a, b in itertools.pairwise(names)]
    return Problem(graph(dict.fromkeys(names, 1.0), edges), cluster(2))


# --- nodes ----------------------------------------------------------------------------------------


def test_chains_become_one_node_and_groups_share_theirs():
    """a -> b -> {c, d} -> e: b is a's only successor and a its only predecessor, so a and b are one
    node; c and d share a key."""
    made = graph(
        dict.fromkeys("abcde", 1.0),
        [("a", ["b"], 8), ("b", ["c", "d"], 8), ("c", ["e"], 8), ("d", ["e"], 8)],
        colocation={"c": "k", "d": "k"},
    )
    problem = Problem(made, cluster(2))
    assert units(problem).of_operator.tolist() == [0, 1, 2, 2, 3]
    nodes = chained_units(problem)
    assert nodes.of_operator.tolist() == [0, 0, 1, 1, 2]
    assert list(zip(nodes.source.tolist(), nodes.target.tolist(), strict=True)) == [(0, 1), (1, 2)]


def test_a_node_that_no_device_can_hold_is_refused():
    weights = {"a": 10, "b": 30}
    made = graph({"a": 1.0, "b": 1.0}, [], weight_bytes=weights)
    assert units(Problem(made, cluster(2, memory=30))).able.all()
    with pytest.raises(InfeasibleError, match="'b'"):
        units(Problem(made, cluster(2, memory=20)))


# --- features -------------------------------------------------------------------------------------


def test_fractal_dimension_of_a_path_and_of_a_star():
    """From the end of a path of five nodes, 1, 2, 3 and 4 nodes lie within distances 1, 2, 3 and 4:
    slope 1. From its middle, 2 and 4 nodes lie within 1 and 2: also slope 1. From its second node,
    2, 3 and 4 nodes lie within 1, 2 and 3: the least squares of (0, ln 2), (ln 2, ln 3), (ln 3,
    ln 4). The middle of a star has a single distance, and so no slope; from one of its four leaves,
    1 node lies within 1 and 4 within 2."""
    found = fractal_dimensions(units(path(5)), NO_END)
    x, y = np.log([1.0, 2.0, 3.0]), np.log([2.0, 3.0, 4.0])
    second = np.polyfit(x, y, 1)[0]
    assert found == pytest.approx([1.0, second, 1.0, second, 1.0])
    star = graph(dict.fromkeys("abcde", 1.0), [("a", list("bcde"), 8)])
    found = fractal_dimensions(units(Problem(star, cluster(2))), NO_END)
    assert found == pytest.approx([0.0, *[2.0] * 4])  # 4 within 2: ln 4 / ln 2


def test_fractal_dimension_of_a_grid_is_between_one_and_two():
    """About r^2 points of a grid lie within distance r of a corner."""
    side = 12
    names = {f"{i}.{j}": 1.0 for i in range(side) for j in range(side)}
    edges = [(f"{i}.{j}", [f"{i + 1}.{j}"], 8) for i in range(side - 1) for j in range(side)]
    edges += [(f"{i}.{j}", [f"{i}.{j + 1}"], 8) for i in range(side) for j in range(side - 1)]
    problem = Problem(graph(names, edges), cluster(2))
    nodes = units(problem)
    corner = fractal_dimensions(nodes, NO_END)[nodes.of_operator[0]]
    assert 1.2 < corner < 2.0


def test_no_time_for_fractal_dimensions_is_said():
    with pytest.raises(OutOfTimeError, match="hsdag ran out of time in the fractal dimensions"):
        fractal_dimensions(units(path(3)), Deadline("hsdag", 0.0))


def test_positional_encoding():
    """Position 1, four numbers: sin and cos of 1, and of 1 / 10000^(2 / 4) = 0.01."""
    encoded = positional_encoding(2, 4)
    assert encoded[0] == pytest.approx([math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)])
    assert encoded[1] == pytest.approx([math.sin(2), math.cos(2), math.sin(0.02), math.cos(0.02)])


def test_a_row_of_features():
    """Two nodes of types x and y: type, shape, in-degree, out-degree, dimension, position."""
    made = graph({"a": 1.0, "b": 1.0}, [("a", ["b"], 8)])
    signatures = ("torch.float32(2, 3)(3, 1) aten.mm", "torch.float32(5,)(1,)")
    made = replace(made, types=("x", "y"), signatures=signatures)
    problem = Problem(made, cluster(2))
    nodes = units(problem)
    assert shapes(made, nodes) == [(2, 3), (5,)]
    known = vocabulary_of(made, nodes)
    assert (known.types, known.in_degrees, known.out_degrees) == (("x", "y"), (0, 1), (0, 1))
    rows = features(made, nodes, known, NO_END)
    assert rows.shape == (2, known.columns) == (2, 2 + 2 + 2 + 2 + 1 + POSITION_NUMBERS)
    logs = [math.log(3) / 10, math.log(4) / 10]
    assert rows[0, :9] == pytest.approx([1, 0, *logs, 1, 0, 0, 1, 0])
    assert rows[1, :9] == pytest.approx([0, 1, math.log(6) / 10, 0, 0, 1, 1, 0, 0])
    assert rows[0, 9:11] == pytest.approx([math.sin(1), math.cos(1)])


def test_ablations_leave_columns_out():
    problem = path(4)
    nodes = units(problem)
    whole = vocabulary_of(problem.graph, nodes)
    columns: dict[Feature, int] = {"structure": 2 + 2 + 1, "shape": 1, "position": 16}
    for without, fewer in columns.items():
        known = vocabulary_of(problem.graph, nodes, (without,))
        assert known.columns == whole.columns - fewer
        assert features(problem.graph, nodes, known, NO_END).shape == (4, known.columns)


def test_what_a_policy_has_not_seen_is_zeros():
    problem = path(3)
    nodes = units(problem)
    known = vocabulary_of(problem.graph, nodes)
    other = replace(problem.graph, types=("new", "op", "new"))
    assert unknown_types(other, known) == 2
    rows = features(other, nodes, known, NO_END)
    assert rows[:, 0].tolist() == [0.0, 1.0, 0.0]


def test_a_graph_without_shapes_has_bytes():
    made = graph({"a": 1.0, "b": 1.0}, [("a", ["b"], 8), ("a", ["b"], 24)])
    assert shapes(made, units(Problem(made, cluster(2)))) == [(24,), ()]


def test_degrees_count_neighbours_not_tensors():
    made = graph({"a": 1.0, "b": 1.0, "c": 1.0}, [("a", ["b", "c"], 8), ("a", ["b"], 24)])
    into, out_of = degrees(units(Problem(made, cluster(2))))
    assert into.tolist() == [0, 1, 1] and out_of.tolist() == [2, 0, 0]


# --- parsing --------------------------------------------------------------------------------------


def test_every_node_keeps_its_strongest_edge():
    """a-b-c-d-e-f with scores .9 .2 .7 .8 .3: a, b keep a-b; c keeps c-d; d, e keep d-e; f keeps
    e-f. So {a, b} and {c, d, e, f} are groups, and no node keeps b-c."""
    nodes = units(path(6))
    score = np.array([0.9, 0.2, 0.7, 0.8, 0.3], dtype=np.float32)
    strongest = strongest_edges(nodes, score, np.arange(5))
    assert strongest.tolist() == [0, 0, 2, 3, 3, 4]
    memory = np.array([10**12, 10**12])
    assert groups(nodes, strongest, memory).tolist() == [0, 0, 1, 1, 1, 1]
    # With d-e dropped, d keeps c-d and e keeps e-f.
    kept = np.array([0, 1, 2, 4])
    strongest = strongest_edges(nodes, score[kept], kept)
    assert strongest.tolist() == [0, 0, 2, 2, 4, 4]
    assert groups(nodes, strongest, memory).tolist() == [0, 0, 1, 1, 2, 2]


def test_of_equal_scores_the_first_edge_is_kept_and_none_is_none():
    nodes = units(path(3))
    strongest = strongest_edges(nodes, np.array([0.5, 0.5], dtype=np.float32), np.arange(2))
    assert strongest.tolist() == [0, 0, 1]
    nothing = strongest_edges(nodes, np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64))
    assert nothing.tolist() == [-1, -1, -1]
    assert groups(nodes, nothing, np.array([10, 10])).tolist() == [0, 1, 2]


def test_groups_join_only_what_a_device_can_run_and_hold():
    made = graph(dict.fromkeys("abc", 1.0), [("a", ["b"], 8), ("b", ["c"], 8)],
                 weight_bytes=dict.fromkeys("abc", 10))  # fmt: skip
    nodes = units(Problem(made, cluster(2, memory=20)))
    assert groups(nodes, np.array([0, 1]), np.array([20, 20])).tolist() == [0, 0, 1]
    assert groups(nodes, np.array([0, 1]), np.array([20, 30])).tolist() == [0, 0, 0]
    apart = replace(nodes, able=np.array([[True, False], [False, True], [True, True]]))
    assert groups(apart, np.array([0, 1]), np.array([90, 90])).tolist() == [0, 1, 1]
