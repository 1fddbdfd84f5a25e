"""Real ranks over gloo on loopback: do they train as one rank, and does a failure end all?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from placewire.job.contract.checkpoint import CheckpointSpec, checkpoints_in
from placewire.job.contract.specification import Noted, RailInterface, Started, StepDone
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.placement import Placement
from tests.job.ranks import LONGEST_SECONDS, Rank, end, run_ranks, start_ranks
from tests.paths import ROOT
from tests.placements import cluster_of, placement_of, random_devices

pytestmark = pytest.mark.timed

STEPS = 5
HARD: dict[str, Any] = {
    "kind": "placed",
    "model": "tests.models.hard:training_step",
    "batch": 4,
    "steps": STEPS,
}


@pytest.fixture(scope="module")
def graph() -> OperatorGraph:
    return capture("tests.models.hard:training_step", 4, OptimizerChoice(), 0).operators


def spread(graph: OperatorGraph, devices: int, seed: int, rails: tuple[str, ...]) -> Placement:
    cluster = cluster_of(devices, rails)
    return placement_of(graph, cluster, random_devices(graph, cluster, seed), order_seed=seed)


@pytest.fixture(scope="module")
def one_rank_losses(graph: OperatorGraph, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    (rank,) = run_ranks(spread(graph, 1, 0, ("a",)), tmp_path_factory.mktemp("one"), (), **HARD)
    assert len(rank.losses) == STEPS and rank.losses[-1] < rank.losses[0]
    assert rank.finished.peak_memory_bytes > 50 << 20
    return rank.losses


def test_a_training_that_diverges_goes_on(tmp_path: Path) -> None:
    """Its loss is no number soon, which no JSON can say. The first such step is told, and the last
    checkpoint of before is kept."""
    choice = OptimizerChoice(lr=1e38)
    graph = capture("tests.models.hard:training_step", 4, choice, 0).operators
    options = HARD | {"optimizer": {"name": choice.name, "lr": choice.lr}}
    options["checkpoint"] = CheckpointSpec(folder=str(tmp_path / "kept"), every=1, keep=1)
    (rank,) = run_ranks(spread(graph, 1, 0, ("a",)), tmp_path, (), **options)
    first = len(rank.losses)
    assert len(rank.step_seconds) == STEPS and 1 <= first < STEPS
    odd = [e.step for e in rank.events if isinstance(e, StepDone) and e.non_finite_loss]
    assert odd == list(range(first, STEPS))
    notes = [note for e in rank.events if isinstance(e, Noted) for note in e.notes]
    assert [note for note in notes if note.startswith(f"the loss of step {first} is ")] == notes
    kept = [one.manifest.step for one in checkpoints_in(tmp_path / "kept")]
    assert kept == [first, STEPS], "with `keep` 1, the one of before it is only spared from then on"


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "seed", "rails"), [(2, 1, ("a", "b")), (3, 2, ("a",))])
def test_ranks_train_as_one(
    graph: OperatorGraph,
    one_rank_losses: list[float],
    tmp_path: Path,
    devices: int,
    seed: int,
    rails: tuple[str, ...],
) -> None:
    placement = spread(graph, devices, seed, rails)
    ranks = run_ranks(placement, tmp_path, rails, **HARD)
    assert [rank.losses for rank in ranks if rank.losses] == [one_rank_losses]
    expected: Counter[tuple[str, str]] = Counter()
    for message in placement.messages:
        expected[message.source, message.destination] += STEPS * message.bytes
    sent: Counter[tuple[str, str]] = Counter()
    for rank in ranks:
        for traffic in rank.finished.traffic:
            assert traffic.rail in rails
            sent[rank.spec.device, traffic.destination] += traffic.bytes
    assert sent == expected


def slow_pair(folder: Path) -> tuple[Placement, dict[str, Any]]:
    """Two ranks that pass a message to and fro, for minutes."""
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.2}) for i in "pqr"]
    tensors = [TensorRow("p", ("q",), 1 << 20), TensorRow("q", ("r",), 1 << 20)]
    graph = build_graph(rows, tensors)
    folder.mkdir(exist_ok=True)
    save_graph(graph, folder / "graph.json")
    placement = placement_of(graph, cluster_of(2), {"p": "s1/0", "q": "s2/0", "r": "s1/0"})
    options = {"kind": "replay", "graph_file": str(folder / "graph.json"), "steps": 500}
    return placement, options


def wait_for_steps(rank: Rank, count: int) -> None:
    """Reads the rank's events until that many steps are done."""
    assert rank.process.stdout is not None
    done = 0
    while done < count:
        line = rank.process.stdout.readline()
        assert line, "the rank ended early"
        done += json.loads(line)["event"] == "step"


def test_ranks_with_other_rails_are_refused(tmp_path: Path) -> None:
    """gloo would hang, because each end would wait on another interface."""
    placement, options = slow_pair(tmp_path)
    more = tuple(
        RailInterface(rail=rail, interface="lo", address="127.0.0.1") for rail in ("a", "b")
    )
    ranks = start_ranks(placement, tmp_path, **options, last={"rail_interfaces": more})
    try:
        assert [rank.finish(LONGEST_SECONDS) for rank in ranks] == [1, 1]
        assert "interfaces on rails a,b, rank 0 on a" in ranks[0].failed.what
    finally:
        end(ranks)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_peer_ends_the_other(tmp_path: Path, victim: int) -> None:
    placement, options = slow_pair(tmp_path)
    ranks = start_ranks(placement, tmp_path, **options)
    try:
        wait_for_steps(ranks[0], 1)
        ranks[victim].process.kill()
        killed = time.monotonic()
        other = ranks[1 - victim]
        assert other.finish(LONGEST_SECONDS) == 1
        assert time.monotonic() - killed < 10
        assert "lost a peer" in other.failed.what
    finally:
        end(ranks)


@pytest.mark.slow
@pytest.mark.parametrize("stuck", [0, 1])
def test_a_frozen_peer_is_named_by_those_who_live(tmp_path: Path, stuck: int) -> None:
    placement, options = slow_pair(tmp_path)
    ranks = start_ranks(placement, tmp_path, **options, loss_seconds=5)
    try:
        wait_for_steps(ranks[0], 1)
        os.kill(ranks[stuck].process.pid, signal.SIGSTOP)
        other = ranks[1 - stuck]
        assert other.finish(LONGEST_SECONDS) == 1
        assert f"rank {stuck} is lost" in other.failed.what and other.failed.lost_rank == stuck
    finally:
        end(ranks)


@pytest.mark.slow
def test_a_slow_operator_is_no_lost_rank(tmp_path: Path) -> None:
    """It takes longer than a rank may be silent, but its rank is not silent."""
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 8.0 if i == "p" else 0.01}) for i in "pq"]
    graph = build_graph(rows, [TensorRow("p", ("q",), 1 << 10)])
    save_graph(graph, tmp_path / "graph.json")
    placement = placement_of(graph, cluster_of(2), {"p": "s1/0", "q": "s2/0"})
    options: dict[str, Any] = {
        "kind": "replay",
        "graph_file": str(tmp_path / "graph.json"),
        "steps": 1,
    }
    ranks = run_ranks(placement, tmp_path, **options, loss_seconds=6)
    assert ranks[1].step_seconds[0] > 7


def test_sigterm_ends_a_rank_that_waits(tmp_path: Path) -> None:
    placement, options = slow_pair(tmp_path)
    ranks = start_ranks(placement, tmp_path, **options)
    try:
        wait_for_steps(ranks[0], 1)
        os.kill(ranks[1].process.pid, signal.SIGSTOP)  # rank 0 will wait for its message
        time.sleep(0.5)
        ranks[0].process.terminate()
        assert ranks[0].finish(LONGEST_SECONDS) == 128 + signal.SIGTERM
        assert ranks[0].failed.what == "stopped by SIGTERM"
    finally:
        end(ranks)


@pytest.mark.slow
def test_another_structure_is_refused_by_all(graph: OperatorGraph, tmp_path: Path) -> None:
    """One rank has another version of the model (here: another batch); the other does not wait."""
    placement = spread(graph, 2, 1, ("a",))
    ranks = start_ranks(placement, tmp_path, **HARD, last={"batch": 5})
    try:
        assert [rank.finish(LONGEST_SECONDS) for rank in ranks] == [1, 1]
        assert "this server's capture has structure" in ranks[1].failed.what
        assert "same on every server" in ranks[1].failed.remedy
        assert not any(isinstance(event, Started) for event in ranks[1].events)
        assert "another rank could not start (rank 1" in ranks[0].failed.what
    finally:
        end(ranks)


def test_what_a_model_prints_is_no_event(tmp_path: Path) -> None:
    (tmp_path / "talkative.py").write_text(
        "print('hello from the model')\n"
        "def training_step(batch, seed):\n    raise RuntimeError('no data here')\n"
    )
    alone = placement_of(
        build_graph([OperatorRow("p", "x", {"cpu": 0.1})], []), cluster_of(1), {"p": "s1/0"}
    )
    (rank,) = start_ranks(alone, tmp_path, kind="placed", model="talkative:training_step", steps=1)
    assert rank.finish(LONGEST_SECONDS) == 1
    assert len(rank.events) == 1
    assert "talkative.py:3" in rank.failed.what and "no data here" in rank.failed.what
    assert "hello from the model" in rank.errors


def test_a_wrong_specification_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text('{"kind": "placed", "surprise": 1}')
    done = subprocess.run(
        [sys.executable, "-m", "placewire.job", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == "" and "rank Field required" in done.stderr
