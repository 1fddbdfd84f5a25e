"""Engine `metis`: cuts the graph into balanced parts with the least traffic between them.

Karypis, Kumar: "A fast and high quality multilevel scheme for partitioning irregular graphs" (SIAM
J. Scientific Computing 20(1), 1998), through pymetis, as the thesis compares with it (section 5.3):
the weight of an operator is its time, the weight of an edge its transfer. The operators of a
co-location group are one vertex. The partitioning is direct k-way, with METIS' own tolerance of
3 %; the parts are in proportion to their devices' speeds. METIS knows neither memories nor devices
that cannot run an operator: a placement that does not fit is refused. The placement runs by list
scheduling.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.engines.units import (
    mean_seconds,
    typical_transfer_seconds,
    unit_of_operator,
    unit_sums,
)
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.schedulers.list_scheduling import by_remaining_path
from placewire.optimizer.registry import Refusal

# What the weights of all vertices add up to, and those of all edges: METIS counts in 32 bits.
_TOTAL = 10**8


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where METIS puts an operator on a device that cannot run it."""
    device = partition(problem, settings.seed)[unit_of_operator(problem)]
    unable = np.flatnonzero(~np.isfinite(problem.seconds[np.arange(len(device)), device]))
    if len(unable):
        name = problem.cluster.device_names[device[unable[0]]]
        raise InfeasibleError(
            f"metis put operator {problem.graph.ids[unable[0]]!r} on {name}, which cannot run "
            "it: METIS assumes that every device can run everything; use engine auto"
        )
    return Solution(device, by_remaining_path(problem, device), None)


def partition(problem: Problem, seed: int) -> IntArray:
    """int64[units]: the device of each unit."""
    import pymetis

    parts = len(problem.cluster.devices)
    unit = unit_of_operator(problem)
    weight = _whole(unit_sums(unit, mean_seconds(problem)))
    start, other, size = adjacency(problem, unit)
    if parts == 1 or not len(weight):
        return np.zeros(len(weight), dtype=np.int64)
    found = pymetis.part_graph(
        parts, adjacency=pymetis.CSRAdjacency(start, other), vweights=weight, eweights=_whole(size),
        tpwgts=device_shares(problem).tolist(), recursive=False,
        options=pymetis.Options(seed=seed % 2**31),
    )  # fmt: skip
    return np.array(found.vertex_part, dtype=np.int64)


def adjacency(problem: Problem, unit: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """The undirected graph of units in CSR: (start, neighbour, transfer seconds between the two in
    both directions together)."""
    source, target, tensor = problem.graph.edges
    seconds = typical_transfer_seconds(problem)[tensor]
    a, b = unit[source], unit[target]
    apart = (a != b) & (seconds > 0)
    ends = np.concatenate([np.stack([a, b], axis=1)[apart], np.stack([b, a], axis=1)[apart]])
    pairs, index = np.unique(ends, axis=0, return_inverse=True)
    size = np.bincount(index.ravel(), np.tile(seconds[apart], 2), len(pairs))
    start = np.zeros(int(unit.max(initial=-1)) + 2, dtype=np.int64)
    np.cumsum(np.bincount(pairs[:, 0], minlength=len(start) - 1), out=start[1:])
    return start, pairs[:, 1].astype(np.int64), size.astype(np.float64)


def device_shares(problem: Problem) -> FloatArray:
    """float64[D], summing to 1: in proportion to the devices' speeds, measured on the operators
    that every device can run."""
    common = np.isfinite(problem.seconds).all(axis=1)
    took = problem.seconds[common].sum(axis=0)
    speed = 1.0 / took if (took > 0).all() else np.ones(problem.seconds.shape[1])
    return np.asarray(speed / speed.sum())


def _whole(values: FloatArray) -> IntArray:
    """Weights as METIS takes them: whole numbers of at least 1."""
    total = max(float(values.sum()), 1e-300)
    return np.maximum(np.round(values / total * _TOTAL), 1).astype(np.int64)


def _accepts(problem: Problem) -> Refusal | None:
    if find_spec("pymetis") is not None:
        return None
    return Refusal("engine metis needs the package pymetis (pip install 'placewire[metis]')")


ENGINE = Engine(
    "balanced parts, the least traffic between them", solve,
    paper="Karypis, Kumar, METIS (SISC 1998)", section="thesis 5.3", decides="devices",
    sees="each transfer alone", memory="none", unlike="parts by speed; all run everything",
    reduction="none", accepts=_accepts,
)  # fmt: skip
