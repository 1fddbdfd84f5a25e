"""Engines, sharings and graphs side by side: step time over one device's, gap, time to solve.

    python -m benchmarks.engines [--moves N] [--graph FILE ...]

Graphs: a synthetic one, the published MSR operator graphs where they are found beside the project,
and any graph files given. Four servers of two 10 Gbit/s NICs. Steps are given as ratios to one
device, so that runs compare; seconds are wall time on this machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from optimizer.cluster import Cluster, Device, Nic, Server
from optimizer.engines.annealing import Annealing
from optimizer.engines.auto import starting_solutions
from optimizer.engines.registry import place
from optimizer.graph import OperatorGraph, OperatorRow, TensorRow, build_graph, load_graph
from optimizer.names import EngineName, Sharing
from optimizer.problem import Problem, SolveSettings

WORKLOADS = Path(__file__).resolve().parents[2] / "shared" / "workloads" / "msr"
SHARINGS: tuple[Sharing, ...] = ("strict", "even", "unshaped")
ENGINES: tuple[EngineName, ...] = ("heft", "auto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moves", type=int, default=20_000)
    parser.add_argument("--graph", type=Path, action="append", default=[])
    options = parser.parse_args()
    names = f"{'graph':<34}{'operators':>9} {'engine':<7}{'sharing':<10}"
    print(f"{names}{'step/one':>9}{'gap':>7}{'s':>7}")
    for graph in _graphs(options.graph):
        problem = Problem(graph, _cluster(graph.device_types[0]))
        print(f"{graph.name[:33]:<34}{graph.operator_count:>9} {_move_cost(problem)}")
        for engine in ENGINES:
            for sharing in SHARINGS:
                print(_row(problem, engine, sharing, options.moves))


def _row(problem: Problem, engine: EngineName, sharing: Sharing, moves: int) -> str:
    began = time.perf_counter()
    shared = Problem(problem.graph, problem.cluster, sharing)
    placement = place(shared, engine, SolveSettings(gap=0.0, moves=moves))
    alone = placement.single_device_seconds or float("nan")
    took = time.perf_counter() - began
    ratio = placement.step_seconds / alone
    return f"{'':<44}{engine:<7}{sharing:<10}{ratio:>9.3f}{placement.gap:>7.1%}{took:>7.1f}"


def _move_cost(problem: Problem) -> str:
    """Microseconds of one annealing move under strict sharing, compiled code warm."""
    search = Annealing(problem, SolveSettings(gap=0.0), None)
    start = starting_solutions(problem)[0]
    search._round(start, 20, 0, False, 0.05)
    began = time.perf_counter()
    search._round(start, 1000, 0, False, 0.05)
    return f"{(time.perf_counter() - began) * 1e3:.1f} us a move"


def _cluster(device_type: str) -> Cluster:
    server = Server(
        name="s",
        devices=(Device(type=device_type, memory_bytes=2**40),),
        nics=tuple(Nic(rail=rail, rate_bits_per_second=1e10) for rail in "ab"),
    )
    return Cluster(
        servers=tuple(server.model_copy(update={"name": f"s{k}"}) for k in range(1, 5)),
        setup_latency_seconds=5e-5,
        intra_server_bits_per_second=4e11,
    )


def _graphs(files: list[Path]) -> Iterator[OperatorGraph]:
    yield _synthetic(400)
    for file in sorted(WORKLOADS.glob("throughput_OperatorGraphs_*training.json")):
        yield _msr(file)
    for file in files:
        yield load_graph(file)


def _synthetic(count: int) -> OperatorGraph:
    generator = np.random.default_rng(0)
    rows = [
        OperatorRow(f"o{i}", "op", {"device": float(generator.exponential(1e-3))})
        for i in range(count)
    ]
    tensors = []
    for i in range(count - 1):
        readers = {min(count - 1, i + 1 + int(generator.integers(0, 12))) for _ in range(2)}
        size = int(generator.exponential(2e5))
        tensors.append(TensorRow(f"o{i}", tuple(f"o{j}" for j in sorted(readers)), size))
    return build_graph(rows, tensors, name="synthetic")


def _msr(file: Path) -> OperatorGraph:
    """Accelerators only, milliseconds; an operator's output is one tensor for all its readers."""
    document = json.loads(file.read_text())
    rows = [
        OperatorRow(
            id=str(node["id"]),
            type="op",
            seconds={"device": node["fpgaLatency"] / 1e3},
            colocation=str(node["colorClass"]) if "colorClass" in node else None,
        )
        for node in document["nodes"]
    ]
    readers: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for edge in document["edges"]:
        readers.setdefault(edge["sourceId"], []).append(str(edge["destId"]))
        sizes[edge["sourceId"]] = max(sizes.get(edge["sourceId"], 0), int(edge["size"]))
    tensors = [TensorRow(str(i), tuple(names), sizes[i]) for i, names in readers.items()]
    return build_graph(rows, tensors, name=file.stem.removeprefix("throughput_OperatorGraphs_"))


if __name__ == "__main__":
    main()
