"""Solves a tiny problem, so that nothing is compiled or imported while a real one is timed.

Kernels are compiled when they are first called, which can take most of a minute: whichever method
came first would pay for it. What they are compiled for depends on the method and the cost model,
hardly on the graph.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.warm_up import look_at_one_case
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.reductions.chain import reduce_by_name

# Moves end a search, however long it takes to compile; time alone would end it too early.
_MOVES, _COMPILING_SECONDS = 8, 300.0
# Branches take so long beside their messages that they are worth several devices.
_BRANCHES, _SECONDS, _BYTES = 3, 1e-2, 4_000


def warm_up(problem: Problem, engine: str, settings: SolveSettings, reduction: str) -> None:
    """Does with a tiny graph what `place` is to do with the problem's; what is refused here is
    refused there, too."""
    tiny = replace(problem, graph=_tiny(problem.cluster))
    few = replace(settings, moves=_MOVES, time_limit_seconds=_COMPILING_SECONDS)
    with suppress(ValueError):
        place(tiny, engine, few, reduction)
        if engine == "auto":
            look_at_one_case(tiny)


def warm_up_reduction(problem: Problem, reduction: str) -> None:
    """Does with a tiny graph what `reduce_by_name` is to do with the problem's."""
    with suppress(ValueError):
        reduce_by_name(replace(problem, graph=_tiny(problem.cluster)), reduction)


def _tiny(cluster: Cluster) -> OperatorGraph:
    """Layers side by side, with weights and updates, and one loss of all."""
    types = {device.type for device in cluster.devices}
    rows = [OperatorRow("loss", "loss", dict.fromkeys(types, _SECONDS))]
    tensors = [TensorRow("loss", tuple(f"backward{k}" for k in range(_BRANCHES)), _BYTES)]
    for k in range(_BRANCHES):
        module, group = f"model.layers.{k}.linear", str(k)
        for name in ("weight", "forward", "backward", "update"):
            rows.append(
                OperatorRow(
                    f"{name}{k}", name, dict.fromkeys(types, 0.0 if name == "weight" else _SECONDS),
                    module=module, colocation=group if name in ("weight", "update") else None,
                )
            )  # fmt: skip
        tensors += [
            TensorRow(f"weight{k}", (f"forward{k}", f"update{k}"), _BYTES),
            TensorRow(f"forward{k}", ("loss", f"backward{k}"), _BYTES),
            TensorRow(f"backward{k}", (f"update{k}",), _BYTES),
        ]
    return build_graph(rows, tensors)
