"""The cases of a comparison: one solve each, with a key of everything that decides its outcome."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.names import DEFAULT_SHARING, Model, SharingName
from placewire.optimizer.published.formulations.solver import SolverName
from placewire.optimizer.published.formulations.topological_sort import SortName
from placewire.optimizer.published.learned.settings import Feature

_OPTIMIZER = Path(__file__).resolve().parents[2]
# The folders that decide placements and their scores; the others read, write and show.
_DECIDING = (
    "bounds", "check", "engines", "graph", "kernels", "network", "published/engines",
    "published/formulations", "published/kernels", "published/learned", "published/reductions",
    "published/schedulers", "rates", "reductions", "simulation",
)  # fmt: skip


@dataclass(frozen=True)
class ComparedGraph:
    """A graph file; rows call it `name`."""

    name: str
    file: Path
    operators: int
    structure_hash: str
    profile_digest: str


@dataclass(frozen=True)
class ComparedCluster:
    name: str
    cluster: Cluster


@dataclass(frozen=True)
class Method:
    """model, sharing: what it decides under. time_limit_seconds: for one solve. gap: a search may
    stop this near to its bound. moves: the most that a search that counts moves may make. without:
    features that hsdag's policy leaves out."""

    engine: str
    reduction: str = "auto"
    model: Model = "contended"
    seed: int = 0
    gap: float = 0.0
    time_limit_seconds: float = 30.0
    solver: SolverName = "auto"
    sort: SortName = "auto"
    moves: int | None = None
    without: tuple[Feature, ...] = ()
    sharing: SharingName = DEFAULT_SHARING


@dataclass(frozen=True)
class Case:
    graph: ComparedGraph
    on: ComparedCluster
    method: Method

    @cached_property
    def key(self) -> str:
        """A digest of all that decides the outcome, which includes the optimizer's own sources."""
        graph, method = self.graph, self.method
        parts = [
            graph.structure_hash, graph.profile_digest, self.on.cluster.digest,
            json.dumps(vars(method), sort_keys=True), sources_digest(),
        ]  # fmt: skip
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def read_graph(file: Path, name: str | None = None) -> ComparedGraph:
    """name: the file's name if None. Raises OSError, and GraphError, which names the file."""
    graph = load_graph(file)
    return ComparedGraph(
        name or file.name.removesuffix(".gz").removesuffix(".json"), file.resolve(),
        graph.operator_count, graph.structure_hash, graph.profile_digest,
    )  # fmt: skip


def crossed(
    graphs: Sequence[ComparedGraph], clusters: Sequence[ComparedCluster], methods: Sequence[Method]
) -> Iterator[Case]:
    """All cases, graph by graph. A method that means the same as an earlier one is left out: with
    `auto` a method means the reduction of its engine's paper."""
    for graph, on in product(graphs, clusters):
        seen = set[Method]()
        for method in methods:
            meant = meant_method(method)
            if meant not in seen:
                seen.add(meant)
                yield Case(graph, on, meant)


def meant_method(method: Method) -> Method:
    """The method with the reduction that `auto` stands for; `single` takes no other either."""
    if method.reduction != "auto" and method.engine != "single":
        return method
    return replace(method, reduction=ENGINES.load(method.engine).reduction or "auto")


@cache
def sources_digest() -> str:
    files = list(_OPTIMIZER.glob("*.py"))
    for folder in _DECIDING:
        files += (_OPTIMIZER / folder).rglob("*.py")
    named = sorted((file.relative_to(_OPTIMIZER).as_posix(), file) for file in files)
    digest = hashlib.sha256()
    for name, file in named:
        digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
