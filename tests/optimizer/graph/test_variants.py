"""Graphs of one step, cut otherwise: their names, which of them are the same, and what is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph
from placewire.optimizer.graph.variants import distinct, variant_names
from tests.optimizer.cases import graph

STEP = {"model": "m:f", "batch": 8, "autocast": None, "optimizer": ["adamw", 1e-3]}


def noted(**notes: Any) -> OperatorGraph:
    return replace(graph({"A": 1.0}, []), notes={**STEP, **notes})


def cut(accumulate: int, shards: int = 1, notes: dict[str, Any] | None = None) -> OperatorGraph:
    return noted(accumulate=accumulate, shards=shards, **(notes or {}))


def test_a_name_says_how_the_step_is_cut() -> None:
    graphs = {"a": cut(1), "b": cut(2), "c": cut(4, 3), "d": cut(1, 2)}
    assert variant_names(graphs) == [
        "1 micro-batch", "2 micro-batches", "4 micro-batches, 3 shards", "1 micro-batch, 2 shards",
    ]  # fmt: skip


def test_a_name_says_which_layers_are_recomputed() -> None:
    graphs = {which: cut(2, 1, {"recompute": which}) for which in ("none", "half", "all")}
    assert variant_names(graphs) == [
        "2 micro-batches",
        "2 micro-batches, half of the layers recomputed",
        "2 micro-batches, all layers recomputed",
    ]


def test_graphs_that_do_not_say_how_they_are_cut_are_named_by_where_they_came_from() -> None:
    assert variant_names({"a.json": graph({"A": 1.0}, [])}) == ["a.json"]
    assert variant_names({"a.json": noted(), "b.json": cut(2)}) == ["a.json", "2 micro-batches"]
    assert variant_names({"a.json": cut(2), "b.json": cut(2)}) == ["a.json", "b.json"]


@pytest.mark.parametrize(
    ("note", "value"),
    [("batch", 16), ("model", "m:g"), ("autocast", "bf16"), ("optimizer", ["sgd", 1.0])],
)
def test_graphs_of_other_steps_are_refused_with_the_difference(note: str, value: object) -> None:
    graphs = {"a.json": cut(1), "b.json": cut(2), "c.json": cut(4, 1, {note: value})}
    with pytest.raises(GraphError) as refused:
        variant_names(graphs)
    said = str(refused.value)
    assert said.startswith("a.json and c.json are no variants of one step: ")
    assert f"{note} is {STEP[note]!r} and {value!r}" in said


def test_a_device_type_that_one_has_no_times_for_is_named() -> None:
    seconds = cut(2).seconds[:, 0]
    both = cut(2).with_seconds({"cpu": seconds, "fast": seconds})
    for graphs in ({"a": cut(1), "b": both}, {"a": both, "b": cut(1)}):
        with pytest.raises(GraphError, match="only one of them has times for device type 'fast'"):
            variant_names(graphs)


def test_the_same_step_is_taken_once_and_told() -> None:
    other = replace(graph({"A": 1.0, "B": 1.0}, []), notes=STEP)
    told: list[str] = []
    graphs = {"a": cut(1), "b": cut(1, 2), "c": other, "d": cut(1, 4)}
    assert list(distinct(graphs, told.append)) == ["a", "c"]
    assert told == [
        "b: left out, because it is the same step as a",
        "d: left out, because it is the same step as a",
    ]
    told.clear()
    assert distinct({"c": other}, told.append) == {"c": other} and not told
