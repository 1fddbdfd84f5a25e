"""Activation checkpointing: the same training, to the last bit, with less memory."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.job.memory import cut, peaks, profiled
from placewire.job.placed.checkpoint import Checkpoints
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.variants import Autocast
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from tests.job.ranks import run_ranks
from tests.job.test_checkpoint import SAVED_AFTER, STEPS, job
from tests.optimizer.capture.eager import train_captured, train_eager
from tests.optimizer.cases import cluster

CHOICE = OptimizerChoice(lr=1e-2)
MODELS = "tests.models.checkpointed:"
# Autocast, and how many micro-batches.
WAYS: tuple[tuple[Autocast | None, int], ...] = ((None, 1), (None, 2), ("bf16", 1), ("bf16", 2))
# `make test` has "powers" in each way, and "again" and "nested" in two each, which differ in both;
# "reentrant" is the same step as "again".
SAMPLE = {"again": WAYS[::3], "reentrant": WAYS[3:], "nested": WAYS[1:3], "powers": WAYS}
CASES = [
    pytest.param(name, *way, marks=() if way in sample else pytest.mark.thorough)
    for name, sample in SAMPLE.items()
    for way in WAYS
]


@functools.cache
def graph(name: str, batch: int = 8, accumulate: int = 1, shards: int = 1) -> OperatorGraph:
    step = capture(MODELS + name, batch, CHOICE, 0, accumulate=accumulate, shards=shards)
    operators = step.operators
    return operators.with_seconds({"cpu": np.full(operators.operator_count, 1e-3)})


@pytest.mark.parametrize(("name", "autocast", "accumulate"), CASES)
def test_it_trains_as_pytorch_does(name: str, autocast: Autocast | None, accumulate: int) -> None:
    captured = capture(MODELS + name, 8, CHOICE, 3, accumulate=accumulate, autocast=autocast)
    assert any(one.endswith("_again") or "_again_m" in one for one in captured.operators.ids)
    ours = train_captured(captured, 3)
    theirs = train_eager(MODELS + name, CHOICE, 3, 8, 3, accumulate, autocast)
    assert ours.losses == theirs.losses
    for key, value in theirs.values.items():
        if key in ours.values:
            assert torch.equal(ours.values[key], value), key


def test_both_ways_of_torch_are_the_same_step() -> None:
    assert graph("again").structure_hash == graph("reentrant").structure_hash


def test_masks_are_drawn_once() -> None:
    """What dropout drew in the forward half counts in the backward half, too."""
    again, plain = (
        train_captured(capture(MODELS + name, 8, CHOICE, 3), 3)
        for name in ("dropping_again", "dropping")
    )
    assert again.losses == plain.losses
    # Wrapped layers have longer names.
    short = {k.replace("_layer_", "_"): v for k, v in again.values.items()}
    assert all(torch.equal(short[key], value) for key, value in plain.values.items())


def test_several_ranks_train_as_one(tmp_path: Path) -> None:
    alone = job(tmp_path / "one", model=MODELS + "again")
    three = job(tmp_path / "three", devices=3, model=MODELS + "again")
    assert three.train(range(STEPS)) == alone.train(range(STEPS))
    ours, theirs = three.state(STEPS), alone.state(STEPS)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_layers_that_the_plan_has_recomputed_train_on_several_ranks_as_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They also go on from a checkpoint of a job that recomputes none."""
    model = MODELS + "plain"
    alone = job(tmp_path / "one", model=model)
    assert alone.begin() == 0
    first = alone.train(range(SAVED_AFTER))
    alone.checkpoints[0].save(SAVED_AFTER)
    alone.checkpoints[0].close()
    losses = alone.train(range(SAVED_AFTER, STEPS))
    for devices in (1, 2, 3):
        folder = tmp_path / str(devices)
        again = job(folder, devices=devices, model=model, recompute="all")
        assert any("_again" in one for one in again.captured.operators.ids)
        assert again.train(range(STEPS)) == [*first, *losses]
        state, expected = again.state(STEPS), alone.state(STEPS)
        assert all(torch.equal(state[key], expected[key]) for key in expected)
    # All ranks of this test share a folder, and take turns as the first rank.
    monkeypatch.setattr(Checkpoints, "make_ready", lambda self: "")
    later = job(tmp_path / "one", devices=2, model=model, recompute="half")
    assert later.begin() == SAVED_AFTER
    assert later.train(range(SAVED_AFTER, STEPS)) == losses


def test_nothing_is_computed_again_before_its_gradient_is_there() -> None:
    """Else the engine could do it right after the forward half, and hold it until then."""
    for step in (graph("again"), graph("again", accumulate=2, shards=2)):
        copies = [i for i, name in enumerate(step.ids) if "_again" in name]
        waits = {i for i, kind in enumerate(step.types) if kind == "after"}
        behind = set(waits)
        for i in step.topological_order.tolist():
            if {int(step.tensor_producer[e]) for e in step.input_tensors(i)} & behind:
                behind.add(i)
        assert copies and waits and behind.issuperset(copies)
        for i in waits:
            _, gradient = step.input_tensors(i)
            made = step.ids[int(step.tensor_producer[gradient])]
            assert "again" not in made


@pytest.mark.parametrize("name", ["again", "nested", "powers"])
def test_what_is_computed_again_takes_memory_again(name: str) -> None:
    step = graph(name)
    copies = [(i, one.removesuffix("_again")) for i, one in enumerate(step.ids) if "_again" in one]
    assert copies
    for i, first in copies:
        original = step.index_of.get(first)
        if original is not None:  # else nothing but the backward half read it
            assert step.activation_bytes[i] == step.activation_bytes[original], first
            assert step.types[i] == step.types[original]


def step_memory(step: OperatorGraph) -> int:
    problem = Problem(step, cluster(1), sharing="job")
    device = np.zeros(step.operator_count, dtype=np.int64)
    return int(simulate(problem, device).peak_memory_bytes[0])


@pytest.mark.parametrize("accumulate", [1, 4])
def test_less_memory_is_predicted(accumulate: int) -> None:
    plain, again = (graph(name, 64, accumulate) for name in ("wide", "wide_again"))
    assert step_memory(again) < 0.7 * step_memory(plain)


@pytest.mark.thorough
def test_less_memory_is_taken_and_that_is_predicted(tmp_path: Path) -> None:
    taken = {}
    for name in ("wide", "wide_again"):
        step = profiled(MODELS + name, 64, tmp_path)
        placement = cut(step, 1)
        fields: dict[str, Any] = {
            "kind": "placed", "model": MODELS + name, "batch": 64, "steps": 3,
        }  # fmt: skip
        (rank,) = run_ranks(placement, tmp_path / name, forked=False, **fields)
        (predicted,) = peaks(step, placement).values()
        step_bytes = rank.finished.step_memory_bytes
        assert step_bytes is not None
        taken[name] = step_bytes
        assert 0.8 * predicted < taken[name] < 1.2 * predicted
    assert taken["wide_again"] < 0.7 * taken["wide"]
