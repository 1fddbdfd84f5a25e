"""The clusters, graph files and cases that the benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.measured import CACHE, sources_digest
from benchmarks.graphs import captured, layered_training_graph, published
from placewire.optimizer.chunks import with_windows
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.profile.modelled import with_modelled_seconds

DEVICE = "rtx4080s"
# Gbit/s of payload per NIC, where a benchmark has one rate only.
GIGABITS = 20.0
# The models that the thesis trains, in its batch sizes, and GPT-2.
CAPTURED = ("alexnet", "vgg16", "fnet", "bert", "gpt2")


@dataclass(frozen=True)
class Case:
    """A graph, in a file, and the cluster on which it is placed."""

    name: str
    file: Path
    cluster: Cluster


def cluster(
    gigabits: float,
    *,
    servers: int = 4,
    nics: int = 3,
    device: str = DEVICE,
    memory_bytes: int = 16 * 2**30,
    background: float = 0.0,
) -> Cluster:
    """Equal servers of one device, with NICs of so many Gbit/s of payload. background: what a
    neighbour wants of each NIC of the first server, as a part of its rate."""
    rate = gigabits * 1e9
    made = Cluster(
        servers=tuple(
            Server(
                name=f"s{k + 1}",
                devices=(Device(type=device, memory_bytes=memory_bytes),),
                nics=tuple(
                    Nic(
                        rail=chr(ord("a") + r),
                        rate_bits_per_second=rate,
                        background_bits_per_second=background * rate if k == 0 else 0.0,
                    )
                    for r in range(nics)
                ),
            )
            for k in range(servers)
        ),
        setup_latency_seconds=50e-6,
        intra_server_bits_per_second=400e9,
    )
    return with_windows(made)


def captured_file(name: str, *, decompose: bool = False) -> Path:
    """The graph of one of our own examples, with modelled times."""
    return _kept(
        f"{name}{'-decomposed' if decompose else ''}.{DEVICE}",
        lambda: with_modelled_seconds(captured(name, decompose=decompose), (DEVICE,)),
    )


def layered_file(operators: int) -> Path:
    """A synthetic training graph of exactly so many operators, with modelled times."""
    return _kept(
        f"layered-{operators}.{DEVICE}",
        lambda: with_modelled_seconds(layered_training_graph(operators, seed=0), (DEVICE,)),
    )


def graph_file(graph: OperatorGraph) -> Path:
    return _kept(graph.name, lambda: graph)


def published_cases() -> Iterator[Case]:
    """msr's graphs on four of their accelerators behind our NICs, Moirai's on their own links."""
    for found in published():
        on = found.cluster
        if found.format == "msr":
            memory = int(on.memory_bytes.max())
            on = cluster(GIGABITS, device="accelerator", memory_bytes=memory)
        yield Case(found.name, graph_file(found.graph), on)


def _kept(name: str, make: Callable[[], OperatorGraph]) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / f"{name}.{sources_digest()[:12]}.json.gz"
    if not file.exists():
        save_graph(make(), file)
    return file
