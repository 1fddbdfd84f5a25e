"""What a published table or figure consists of, and what of ours stands beside its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.names import Model
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.learned.settings import Feature

# What the papers print where we would print a number.
NOT_IN_TEXT = "-"
_SETUP_SECONDS = 50e-6


@dataclass(frozen=True)
class Captured:
    """function: of a model file, `placewire.examples.models.alexnet:training_step`."""

    function: str
    batch: int


@dataclass(frozen=True)
class Solved:
    """One solve. on: a cluster of the preset. step: under contended, strict; own: under the
    method's own model; search: seconds; speedup: one device's step over its own."""

    on: str
    method: Method
    figure: Literal["step", "own", "search", "speedup"]


@dataclass(frozen=True)
class Saved:
    """How much shorter, in per cent, the step of `fast` is than that of `slow`."""

    slow: Solved
    fast: Solved


@dataclass(frozen=True)
class Reduced:
    """operators: before and after; groups: co-location keys of two or more; seconds: what the
    reduction took; ccr: communication-to-computing ratio before and after; path: how much longer
    the longest path of operator times is."""

    on: str
    reduction: str
    figure: Literal["operators", "groups", "seconds", "ccr", "path"]


@dataclass(frozen=True)
class Delays:
    """Of the distribution of computing delays: the thesis' alpha or beta, or what part of all time
    the tenth of operators that take longest has."""

    figure: Literal["alpha", "beta", "heaviest tenth"]


@dataclass(frozen=True)
class FusedAt:
    """The longest path after Algorithm 1 of the thesis at so many times its alpha, and the
    operators that are left."""

    times_alpha: float


Asked = Solved | Saved | Reduced | Delays | FusedAt


@dataclass(frozen=True)
class Figure:
    """model: a key of Preset.models; paper: as it prints it. asked: None where ours cannot be had,
    then `why` says so."""

    model: str
    what: str
    paper: str
    asked: Asked | None
    why: str = ""


@dataclass(frozen=True)
class Preset:
    """devices: names of modelled devices (profile.devices) that the graphs get times for. differs:
    in what our setting is another. refusal: why nothing of it can be had here."""

    title: str
    models: Mapping[str, Captured]
    devices: tuple[str, ...]
    clusters: Mapping[str, Cluster]
    figures: Sequence[Figure]
    differs: Sequence[str]
    refusal: str = ""


def shortened(preset: Preset, seconds: float) -> Preset:
    """With at most so many seconds for a solve, which is told among what differs."""
    figures = [replace(one, asked=_shortened(one.asked, seconds)) for one in preset.figures]
    if figures == list(preset.figures):
        return preset
    told = f"a solve has at most {seconds:g} s, as asked for, also where more is named below"
    return replace(preset, figures=figures, differs=(told, *preset.differs))


def _shortened(asked: Asked | None, seconds: float) -> Asked | None:
    if isinstance(asked, Saved):
        return Saved(_sooner(asked.slow, seconds), _sooner(asked.fast, seconds))
    return _sooner(asked, seconds) if isinstance(asked, Solved) else asked


def _sooner(solved: Solved, seconds: float) -> Solved:
    limit = min(solved.method.time_limit_seconds, seconds)
    return replace(solved, method=replace(solved.method, time_limit_seconds=limit))


def equal_servers(
    count: int,
    device: str,
    memory_gib: float,
    *,
    nics: int,
    gigabits: float,
    devices: int = 1,
    inside_gigabits: float = 400.0,
) -> Cluster:
    """count servers of so many devices; gigabits per second and NIC, payload."""
    held = Device(type=device, memory_bytes=int(memory_gib * 2**30))
    rails = tuple(Nic(rail=f"r{k + 1}", rate_bits_per_second=gigabits * 1e9) for k in range(nics))
    servers = tuple(
        Server(name=f"s{k + 1}", devices=(held,) * devices, nics=rails) for k in range(count)
    )
    return Cluster(
        servers=servers,
        setup_latency_seconds=_SETUP_SECONDS,
        intra_server_bits_per_second=inside_gigabits * 1e9,
    )


def method(
    engine: str,
    reduction: str = "auto",
    model: Model = "contended",
    *,
    limit_seconds: float = 30.0,
    gap: float = 0.0,
    moves: int | None = None,
    without: tuple[Feature, ...] = (),
) -> Method:
    """engine: also one that the catalogue may not have; its figures are then refused."""
    named = engine
    return Method(
        named, reduction, model, gap=gap, time_limit_seconds=limit_seconds, moves=moves,
        without=without,
    )  # fmt: skip
