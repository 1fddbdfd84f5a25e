"""The clusters and graphs that the benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.engine.measured import CACHE, sources_digest
from benchmarks.graphs import Published, captured, layered_training_graph
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.profile.modelled import with_modelled_seconds

DEVICE = "rtx4080s"
GIGABIT = 1e9
# What the thesis trains, in its batch sizes, and GPT-2.
CAPTURED = ("alexnet", "vgg16", "fnet", "bert", "gpt2")


def cluster(
    gigabits: float,
    *,
    servers: int = 4,
    nics: int = 3,
    device: str = DEVICE,
    memory_bytes: int = 16 * 2**30,
    background: float = 0.0,
) -> Cluster:
    """Equal servers of one device; gigabits of payload per second and NIC. background: what a
    neighbour on the first server wants of each of its NICs, as a part of their rate."""
    rate = gigabits * GIGABIT
    return Cluster(
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
        intra_server_bits_per_second=400 * GIGABIT,
    )


def captured_file(name: str) -> Path:
    """Our own example's graph with modelled times."""
    return _kept(f"{name}.{DEVICE}", lambda: with_modelled_seconds(captured(name), (DEVICE,)))


def layered_file(operators: int) -> Path:
    """A synthetic deep training graph of exactly that many operators, with modelled times."""
    return _kept(
        f"layered-{operators}.{DEVICE}",
        lambda: with_modelled_seconds(layered_training_graph(operators, seed=0), (DEVICE,)),
    )


def published_file(found: Published) -> Path:
    """With the times that the file states."""
    return _kept(f"{found.format}-{found.name}", lambda: found.graph)


def graph_file(graph: OperatorGraph) -> Path:
    return _kept(graph.name, lambda: graph)


def graph_of(file: Path) -> OperatorGraph:
    return load_graph(file)


def _kept(name: str, make: Callable[[], OperatorGraph]) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    file = CACHE / f"{name}.{sources_digest()[:12]}.json.gz"
    if not file.exists():
        save_graph(make(), file)
    return file
