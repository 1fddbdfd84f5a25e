"""Traces: do ranks record every operator and message, without changing results?"""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from placewire.job.contract.specification import (
    Finished,
    Noted,
    RankEvent,
    RankSpec,
    StepDone,
    TraceSpec,
)
from placewire.job.messages.rank_messages import RankMessage
from placewire.job.placed.recorder import Recorder
from placewire.job.placed.resume import Beginning
from placewire.job.placed.runtime import Program, _run_steps
from placewire.job.transport.transport import Alone
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.json_file import read_json
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.placement import Placement
from placewire.optimizer.trace.document import trace_from_json, trace_to_json
from placewire.optimizer.trace.merging import merged
from placewire.optimizer.trace.predicted import predicted_trace
from tests.job.ranks import Rank, run_ranks, start_ranks
from tests.job.sent_messages import message
from tests.placements import cluster_of, placement_of, random_devices
from tests.trace_files import (
    check_trace,
    computed,
    expected_operators,
    expected_transfers,
    transfers,
)

RAILS = ("a", "b")
STEPS = 3
HARD = {
    "kind": "placed",
    "model": "tests.models.hard:training_step",
    "batch": 4,
    "steps": STEPS,
}


def traced(placement: Placement, folder: Path, recorded: int, **options: Any) -> list[Rank]:
    trace = TraceSpec(folder=str(folder / "traces"), steps=recorded)
    return run_ranks(placement, folder, placement.cluster.rails, trace=trace, **options)


def documents(folder: Path, placement: Placement) -> list[dict]:
    files = [folder / "traces" / f"rank{k}.json" for k in range(len(placement.devices_used))]
    return [read_json(file) for file in files]


def check_beside_the_prediction(
    graph: OperatorGraph, placement: Placement, folder: Path, steps: list[int]
) -> None:
    """Checks that both have the same operators and messages, each once per step."""
    ranks = documents(folder, placement)
    for document in ranks:
        check_trace(document)
    prediction = predicted_trace(graph, placement, steps)
    document = trace_to_json(merged([prediction, *map(trace_from_json, ranks)]))
    check_trace(document)
    for source in ("predicted", "measured"):
        assert computed(document, source) == expected_operators(placement, steps)
        assert transfers(document, source) == expected_transfers(placement, steps)


def unshaped(placement: Placement) -> Placement:
    """Returns the placement unshaped; strict sharing would need rates."""
    return placement.model_copy(update={"sharing": "unshaped"})


@pytest.mark.slow
def test_traced_steps_compute_the_same_and_name_everything(tmp_path: Path) -> None:
    graph = capture("tests.models.hard:training_step", 4, OptimizerChoice(), 0).operators
    graph = graph.with_seconds({"cpu": np.full(graph.operator_count, 1e-4)})
    cluster = cluster_of(2)
    placement = unshaped(placement_of(graph, cluster, random_devices(graph, cluster, 1)))
    losses = []
    for steps in (1, STEPS):
        (tmp_path / str(steps)).mkdir()
        ranks = traced(placement, tmp_path / str(steps), steps, **HARD)
        losses.append([rank.losses for rank in ranks])
        last = list(range(STEPS - steps, STEPS))
        check_beside_the_prediction(graph, placement, tmp_path / str(steps), last)
    assert losses[0] == losses[1] and len(max(losses[0])) == STEPS


def fork() -> tuple[OperatorGraph, Placement]:
    seconds = {"p": 0.01, "q": 0.02, "r": 0.01, "s": 0.01}
    tensors = [TensorRow("p", ("q", "r"), 3 << 20), TensorRow("q", ("s",), 1 << 17)]
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": s}) for i, s in seconds.items()]
    graph = build_graph(rows, tensors)
    devices = {"p": "s1/0", "q": "s2/0", "r": "s1/0", "s": "s1/0"}
    return graph, unshaped(placement_of(graph, cluster_of(2, RAILS), devices))


def test_a_replay_is_traced_on_its_own_clock(tmp_path: Path) -> None:
    graph, placement = fork()
    save_graph(graph, tmp_path / "graph.json")
    told = {"kind": "replay", "graph_file": str(tmp_path / "graph.json"), "steps": 4}
    ranks = traced(placement, tmp_path, 2, **told)
    check_beside_the_prediction(graph, placement, tmp_path, [2, 3])
    first, second = documents(tmp_path, placement)
    for document, names in ((first, "prs"), (second, "q")):
        compute = [e for e in document["traceEvents"] if e.get("cat") == "compute"]
        assert [e["name"] for e in compute] == list(names) * 2
        for event in compute:
            expected = graph.seconds[graph.index_of[event["name"]], 0]
            assert event["dur"] == pytest.approx(expected * 1e6, rel=1e-3)
    steps = [e["dur"] for e in first["traceEvents"] if e.get("cat") == "step"]
    assert steps == pytest.approx([s * 1e6 for s in ranks[0].step_seconds[2:]], rel=1e-3)


def test_a_message_arrives_after_it_was_queued(tmp_path: Path) -> None:
    graph, placement = fork()
    save_graph(graph, tmp_path / "graph.json")
    told = {"kind": "replay", "graph_file": str(tmp_path / "graph.json"), "steps": 2}
    traced(placement, tmp_path, 1, **told)
    traces = [trace_from_json(document) for document in documents(tmp_path, placement)]
    (sending,) = [s for s in traces[0].devices[0].spans if s.row == "a sends"]
    sent = sending.start_seconds
    assert sending.finish_seconds > sent >= 0.01  # p's time
    together = merged(traces).devices[1]
    (there,) = [s for s in together.spans if s.row == "a receives"]
    # A barrier aligns the clocks of two processes, as exactly as both are run when it opens. A busy
    # machine may run one of them later: then the message seems to arrive before it was queued.
    assert there.start_seconds == min(sent, there.finish_seconds)
    assert there.details["bytes"] == 3 << 19


def test_without_a_trace_no_file_is_written(tmp_path: Path) -> None:
    graph, placement = fork()
    save_graph(graph, tmp_path / "graph.json")
    run_ranks(
        placement, tmp_path, RAILS,
        kind="replay", graph_file=str(tmp_path / "graph.json"), steps=1,
    )  # fmt: skip
    assert not (tmp_path / "traces").exists()


def test_a_folder_that_cannot_be_made_ends_the_rank_before_the_first_step(tmp_path: Path) -> None:
    graph, _ = fork()
    alone = placement_of(graph, cluster_of(1, RAILS), dict.fromkeys(graph.ids, "s1/0"))
    save_graph(graph, tmp_path / "graph.json")
    (tmp_path / "taken").write_text("")
    trace = TraceSpec(folder=str(tmp_path / "taken" / "traces"), steps=1)
    (rank,) = start_ranks(
        alone, tmp_path, (),
        kind="replay", graph_file=str(tmp_path / "graph.json"), steps=1, trace=trace,
    )  # fmt: skip
    assert rank.finish(30) == 1
    assert str(tmp_path / "taken") in rank.failed.what and not rank.step_seconds


class NotingThreads(Alone):
    """Notes which threads hand messages over."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def send(self, message: RankMessage, wire: torch.Tensor) -> None:
        self.threads.append(threading.get_ident())


def recorder_of(trace: TraceSpec | None, steps: int) -> Recorder:
    spec = RankSpec.model_construct(trace=trace, steps=steps, rank=0, device="s1/0")  # type: ignore[call-arg]
    return Recorder(spec, Placement.model_construct())  # type: ignore[call-arg]


def test_gloo_gets_nothing_from_the_thread_that_the_profiler_watches(tmp_path: Path) -> None:
    """The profiler would follow it into gloo's threads, which report memory after its end."""
    recorder = recorder_of(TraceSpec(folder=str(tmp_path), steps=1, workspace=True), steps=4)
    inner = NotingThreads()
    transport = recorder.around(inner)
    (waiting,) = message(0, 4)
    for step in range(4):
        recorder.begin(step, time.perf_counter())
        transport.send(waiting.message, torch.empty(4, dtype=torch.uint8))
        recorder.end(time.perf_counter())
    here = threading.get_ident()
    assert [thread == here for thread in inner.threads] == [True, True, False, True]


@pytest.mark.parametrize("recorded", [0, 2])
def test_nothing_is_kept_of_steps_that_are_not_recorded(tmp_path: Path, recorded: int) -> None:
    trace = TraceSpec(folder=str(tmp_path), steps=recorded) if recorded else None
    recorder = recorder_of(trace, steps=1_000)
    for step in range(1_000):
        recorder.begin(step, time.perf_counter())
        recorder.end(time.perf_counter())
    held = [value for value in vars(recorder).values() if isinstance(value, dict | list)]
    assert max(map(len, held)) == recorded


def test_a_trace_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    """All steps are done by then, and the job may have run for days."""

    class Full(Recorder):
        def __init__(self) -> None: ...

        def begin(self, step: int, at: float) -> None: ...

        def end(self, at: float) -> None: ...

        def write(self, structure_hash: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    spec = RankSpec.model_validate({
        **HARD, "rank": 0, "world_size": 1, "device": "s1/0", "master_address": "127.0.0.1",
        "master_tcp_port": 29400, "rail_interfaces": (), "placement_file": "none",
    })  # fmt: skip
    told: list[RankEvent] = []
    program = Program("hash", lambda step: (), lambda step: None, lambda inputs: {}, Full())
    _run_steps(spec, program, Beginning(), Alone(), told.append)
    assert [type(event) for event in told] == [*[StepDone] * STEPS, Noted, Finished]
    assert isinstance(told[-2], Noted) and "its trace is not written" in told[-2].notes[0]
