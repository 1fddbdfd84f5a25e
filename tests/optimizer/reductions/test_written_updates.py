"""Updates that a decomposed step writes out: each becomes one operator, with its weight."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.problem import Problem
from placewire.optimizer.reductions.chain import reduce_by_name
from placewire.optimizer.reductions.written_updates import merge_updates, written_updates
from placewire.optimizer.simulation.simulate import recorded_priority, simulate
from tests.optimizer.peers.steps import captured, gpus


@pytest.mark.parametrize(("parts", "shards"), [(1, 1), (2, 1), (4, 4)])
def test_each_weight_has_one_update_and_shares_a_device_with_it(parts: int, shards: int) -> None:
    fine = captured("mlp", parts, shards=shards, decompose=True)
    small, _ = merge_updates(Problem(fine, gpus(2)))
    kinds = Counter(small.graph.types)
    assert kinds["update"] == kinds["parameter"] > 0
    assert kinds["buffer"] == 0, "the optimizer's state is in its update"
    keys = defaultdict(list)
    for kind, key in zip(small.graph.types, small.graph.colocation.tolist(), strict=True):
        keys[kind].append(key)
    assert sorted(keys["update"]) == sorted(keys["parameter"])
    assert len(set(keys["update"])) == kinds["update"]


def test_nothing_is_lost_but_the_choice_where_parts_of_an_update_run() -> None:
    fine = captured("mlp", 1, decompose=True)
    problem = Problem(fine, gpus(2), sharing="unshaped", model="thesis")
    small, undo = merge_updates(problem)
    for column in ("seconds", "weight_bytes", "activation_bytes"):
        of_all = getattr(problem.graph, column).sum()
        assert getattr(small.graph, column).sum() == pytest.approx(of_all)
    where = np.zeros(small.graph.operator_count, dtype=np.int64)
    device, priority = undo(where, recorded_priority(small))
    assert (device == 0).all()
    whole = simulate(problem, device, priority).step_seconds
    assert simulate(small, where, recorded_priority(small)).step_seconds == pytest.approx(whole)


def test_the_reduction_of_a_search_begins_with_it() -> None:
    problem = Problem(captured("alexnet", 1, decompose=True), gpus(2))
    small, undo, _ = reduce_by_name(problem, "auto")
    count = small.graph.operator_count
    assert 4 * count < problem.graph.operator_count
    device, _ = undo(np.arange(count), np.zeros(count))
    number = written_updates(problem.graph)
    for k in range(number.max() + 1):
        assert len(set(device[number == k].tolist())) == 1


def test_a_step_whose_updates_are_single_operators_is_not_changed() -> None:
    problem = Problem(captured("mlp", 2), gpus(2))
    assert merge_updates(problem)[0] is problem


def written_out(reader: bool) -> OperatorGraph:
    """A weight, its gradient, and an update of three operators; reader: the first is read by an
    operator that the last one waits for."""
    kinds = {"w": "parameter", "state": "buffer", "gradient": "mm", "other": "mm",
             "update_mul_w": "mul", "update_add_w": "add", "update_w": "copy"}  # fmt: skip
    rows = [
        OperatorRow(name, kind, {"cpu": 1.0}, colocation="w" if name in ("w", "update_w") else None)
        for name, kind in kinds.items()
    ]
    edges = {
        "w": ["gradient", "update_w"], "gradient": ["update_mul_w"], "state": ["update_mul_w"],
        "update_mul_w": ["update_add_w", *(["other"] if reader else [])],
        "update_add_w": ["update_w"], **({"other": ["update_w"]} if reader else {}),
    }  # fmt: skip
    tensors = [TensorRow(name, tuple(readers), 8) for name, readers in edges.items()]
    made = build_graph(rows, tensors, device_types=("cpu",))
    return replace(made, notes={"decompose": True})


def test_an_update_with_a_reader_outside_stays_as_it_is_because_it_might_wait_for_itself() -> None:
    names = np.array(written_out(reader=False).ids)
    inside = written_updates(written_out(reader=False)) == 0
    assert set(names[inside]) == {"state", "update_mul_w", "update_add_w", "update_w"}
    assert (written_updates(written_out(reader=True)) == -1).all()
