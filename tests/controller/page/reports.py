"""Reports of runs, with their files, for tests of the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.records.of_steps import ValidationRow
from placewire.controller.records.report import RunReport, allocation_digest
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.json_file import write_json
from placewire.optimizer.placement import Placement, save_placement
from placewire.optimizer.trace.document import trace_to_json
from placewire.optimizer.trace.predicted import predicted_trace
from tests.optimizer.cases import cluster
from tests.optimizer.explain.test_parallelism import layered
from tests.placements import placement_of


def link(source: str, destination: str, measured: float = 99e6, **other: Any) -> LinkMeasurement:
    return LinkMeasurement(
        source=source, destination=destination, rail=other.pop("rail", "a"), nic="nic0",
        queue_id=1, promised_bits_per_second=100e6, at_most_bits_per_second=100e6,
        wire_bits_per_second=105e6, measured_bits_per_second=measured,
        within_tolerance=measured > 90e6, **other,
    )  # fmt: skip


def a_report(**other: Any) -> RunReport:
    known: dict[str, Any] = {
        "plan_name": "small", "plan_digest": "d" * 64, "generations": {"s1": 1, "s2": 1},
        "changes": {"s1": 3, "s2": 3}, "changed": {"s1": {"add queues": 2, "add bridges": 1}},
        "sharing": "strict", "links": (), "network": "restored", "files": {},
        "stage_seconds": {"stage": 1.0, "job": 9.0},
    }  # fmt: skip
    return RunReport(**{**known, **other})


def placed(folder: Path, *, traced: bool = False, devices: int = 4) -> tuple[RunReport, Placement]:
    """A report of so many devices in data parallelism, with its files."""
    graph = layered(devices, 4)
    homes = {
        name: f"s{(k if micro_batch < 0 else micro_batch) % devices + 1}/0"
        for k, (name, micro_batch) in enumerate(
            zip(graph.ids, graph.micro_batch.tolist(), strict=True)
        )
    }
    placed = placement_of(graph, cluster(devices), homes)
    placement = placed.model_copy(update={"sharing": "unshaped"})
    files = {"graph": folder / "graph.json", "placement": folder / "placement.json"}
    save_graph(graph, files["graph"])
    save_placement(placement, files["placement"])
    if traced:
        predicted = predicted_trace(graph, placement, [3, 4])
        measured = (replace(device, source="measured") for device in predicted.devices)
        document = trace_to_json(replace(predicted, devices=tuple(measured)))
        files["trace"] = folder / "trace.json"
        write_json(files["trace"], document)
    report = a_report(
        operators=graph.operator_count, devices=placement.devices_used,
        files={name: str(file) for name, file in files.items()},
        allocation_digest=allocation_digest(placement),
        predicted_step_seconds=2.0, bound_seconds=1.5, single_device_seconds=6.0,
        step_seconds=(3.0, 2.1, 2.2, 2.1), measured_step_seconds=2.1, losses=(4.0, None, 2.0, 1.0),
        metrics={"accuracy": (0.1, 0.2, 0.3, 0.4)},
        validations=tuple(
            ValidationRow(step=k, batches=2, loss=3.0 / k, metrics={"accuracy": 0.1 * k}, seconds=1)
            for k in (2, 4)
        ),
    )  # fmt: skip
    return report, placement
