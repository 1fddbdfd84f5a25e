"""Compiles the functions of engines, once per machine and version, before the first search:

    python -m placewire.optimizer.engines.warm_up auto hsdag

Small problems under several sharings and models call every compiled function.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from placewire.optimizer.bounds.cases import Cases
from placewire.optimizer.bounds.message_time import messages_of
from placewire.optimizer.bounds.relaxation import relax
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.names import (
    DEFAULT_SHARING,
    SHARING_OF_EVEN_TRAFFIC,
    Model,
    SharingName,
)
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings

# The default sharing of a search, and that of even traffic: between them they compile both event
# loops.
_CASES: tuple[tuple[SharingName, Model], ...] = (
    (DEFAULT_SHARING, "contended"),
    (DEFAULT_SHARING, "thesis"),
    (SHARING_OF_EVEN_TRAFFIC, "contended"),
)
# Enough operators to be reduced, and memory for half of them.
_OPERATORS, _BYTES = 320, 1_000


def main(engines: Sequence[str]) -> None:
    began = time.monotonic()
    for engine in engines:
        if engine == "auto":
            for sharing, model in _CASES:
                problem = Problem(_graph(), _cluster(), sharing, model)
                place(problem, engine, SolveSettings(gap=0.0, moves=480))
            place(Problem(_graph(2), _cluster()), engine, SolveSettings(gap=0.0, moves=480))
            # The search of decomposed steps has loops of its own under this model; on a network as
            # fast as that above its first plan would be proven the best.
            fine = replace(_graph(), notes={"decompose": True})
            searched = Problem(fine, _cluster(1e8), DEFAULT_SHARING, "thesis")
            place(searched, engine, SolveSettings(gap=0.0, moves=480))
            look_at_one_case(Problem(_graph(), _cluster()))
        else:  # such an engine has compiled functions of its own
            with contextlib.suppress(InfeasibleError):
                place(Problem(_graph(), _cluster()), engine, SolveSettings(moves=1))
    took = time.monotonic() - began
    print(f"compiled in {took:.0f} s: {', '.join(engines)}", file=sys.stderr)


def look_at_one_case(problem: Problem) -> None:
    """A search with a budget of moves seeks no stronger bound, so no proof by cases either."""
    relaxation = relax(problem)
    # So long a step contradicts nothing, and without time no case follows the first.
    step = 2 * float(relaxation.work.sum())
    Cases(relaxation, messages_of(problem), step, until=0.0).refuted()


def _graph(micro_batches: int = 0) -> OperatorGraph:
    """micro_batches: how many take turns among the operators; 0: the step is whole."""
    names = [f"o{i}" for i in range(_OPERATORS)]
    rows = [
        OperatorRow(
            name, "op", {"device": 1e-3}, weight_bytes=_BYTES,
            micro_batch=i % micro_batches if micro_batches else None,
        )
        for i, name in enumerate(names)
    ]  # fmt: skip
    tensors = [
        TensorRow(names[i], tuple(names[i + 3 : i + 8 : 4]), 100_000) for i in range(_OPERATORS - 3)
    ]
    return build_graph(rows, tensors, name="warm-up")


def _cluster(bits_per_second: float = 1e10) -> Cluster:
    memory = _OPERATORS * _BYTES // 2 + 4_000_000
    devices = (Device(type="device", memory_bytes=memory),)
    nics = (Nic(rail="a", rate_bits_per_second=bits_per_second),)
    servers = tuple(Server(name=f"s{k}", devices=devices, nics=nics) for k in range(3))
    return Cluster(servers=servers, setup_latency_seconds=2e-5, intra_server_bits_per_second=1e11)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    main(sys.argv[1:])
