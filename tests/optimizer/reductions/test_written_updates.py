"""Updates that a decomposed step writes out: each becomes one operator, with its weight."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.reductions import mild
from placewire.optimizer.reductions import written_updates as written_updates_module
from placewire.optimizer.reductions.chain import reduce_by_name
from placewire.optimizer.reductions.merging import most_unit_bytes, operator_bytes, units_of
from placewire.optimizer.reductions.mild import reduce_for_search
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


def test_our_own_search_begins_with_a_larger_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(captured("alexnet", 1, decompose=True), gpus(2))
    merged = merge_updates(problem)[0].graph.operator_count
    assert reduce_for_search(problem)[0].graph.operator_count == merged
    monkeypatch.setattr(mild, "FINE_TO", merged // 2)
    assert reduce_for_search(problem)[0].graph.operator_count <= 0.6 * merged
    coarse = Problem(captured("alexnet", 1), gpus(2))
    assert reduce_for_search(coarse)[0].graph.ids == mild.reduce_mildly(coarse)[0].graph.ids


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


def test_an_update_that_would_outgrow_a_device_stays_written_out() -> None:
    """AlexNet's heaviest weight, its state and its update count 17 MiB, of devices of 16."""
    fine = captured("alexnet", 1, decompose=True)
    tight = Problem(fine, gpus(4, 20.0, memory=1 << 24), sharing="strict", model="thesis")
    small, undo = merge_updates(tight)
    whole, _ = merge_updates(replace(tight, cluster=gpus(4, 20.0)))
    assert whole.graph.operator_count < small.graph.operator_count < fine.operator_count
    home, _ = undo(np.arange(small.graph.operator_count), np.zeros(small.graph.operator_count))
    unit = units_of(small.graph.colocation)[home]
    held = np.bincount(unit, operator_bytes(fine))
    merged = np.flatnonzero(np.bincount(home)[home] > 1)
    assert (held[unit[merged]] <= most_unit_bytes(tight)).all()
    found = place(tight, "heft", SolveSettings(moves=1))
    assert found.reduction.startswith("auto: ")


def test_a_merged_update_is_named_by_its_own_operators() -> None:
    """Its state, which stands before them, says neither whose update it is nor that it is one."""
    small, _ = merge_updates(Problem(captured("mlp", 1, decompose=True), gpus(2)))
    names = [
        name
        for name, kind in zip(small.graph.ids, small.graph.types, strict=True)
        if kind == "update"
    ]
    assert names and all(name.startswith("update_") for name in names)


def test_the_updates_of_a_graph_are_merged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = replace(captured("mlp", 1, decompose=True))
    looked, found = list[OperatorGraph](), written_updates_module.written_updates

    def noted(graph: OperatorGraph) -> IntArray:
        looked.append(graph)
        return found(graph)

    monkeypatch.setattr(written_updates_module, "written_updates", noted)
    first, _ = merge_updates(Problem(fine, gpus(2)))
    before = len(looked)
    again, _ = merge_updates(Problem(fine, gpus(2)))
    assert before > 0 and len(looked) == before
    assert again.graph is first.graph


def test_a_graph_that_is_not_decomposed_is_not_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(graph: OperatorGraph) -> None:
        raise AssertionError(f"{graph.name} was looked through")

    monkeypatch.setattr(written_updates_module, "updates", refuse)
    coarse = Problem(captured("mlp", 2), gpus(2))
    assert merge_updates(coarse)[0] is coarse
    assert (written_updates(coarse.graph) == -1).all()
