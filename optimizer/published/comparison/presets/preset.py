"""The types of a preset: a published table or figure, and which figure of ours it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.published.comparison.cases import Method

# The paper's side of a figure that its text does not state.
NOT_IN_TEXT = "-"
# Of the thesis' and QuickP's programs (formulations/known_start.py), in `differs`.
STARTS = (
    "our solvers begin with the better of one device and HEFT, and look for nothing longer: that "
    "takes them less time, and what a program has when its time is over may be such a start"
)
# Of figures with `decompose`, in `differs`.
DECOMPOSED = (
    "here a step is captured as core operators, with the optimizer's update written out "
    "(`optimizer capture --decompose`), which is nearer to how fine TensorFlow's graphs are"
)
DECOMPOSED_FUSION = (
    f"of operators, groups and fusion: {DECOMPOSED}; all else has the step as it runs"
)
# The steps of Celeritas' Standard Evaluation: 5 to warm up, and 50 that are timed (6.3).
EVALUATION_STEPS = 5 + 50
SETUP_SECONDS = 50e-6

SolvedFigure = Literal["step", "own", "search", "solver", "speedup", "evaluation"]


@dataclass(frozen=True)
class Captured:
    """function: as in `placewire.examples.models.alexnet:training_step`. inference: the forward
    pass alone; half: in half precision; decompose: into core operators, with the optimizer's update
    written out, which makes a graph about as fine as TensorFlow's."""

    function: str
    batch: int
    inference: bool = False
    half: bool = False
    decompose: bool = False


@dataclass(frozen=True)
class Solved:
    """A figure of one solve. on: a cluster of the preset. figure: step is under contended, strict;
    own is by the method's own model, of a program its objective; search is in seconds; solver, too:
    until a program's solver was within the method's gap of its own bound; speedup is one device's
    step over its own; evaluation is in seconds: the search, and EVALUATION_STEPS. paper_seconds:
    what the paper says that this solve took; 0 where it does not."""

    on: str
    method: Method
    figure: SolvedFigure
    paper_seconds: float = 0.0


@dataclass(frozen=True)
class Seeds:
    """The mean of the steps of a solve under several seeds, and their standard deviation."""

    solved: Solved
    seeds: tuple[int, ...]

    @property
    def each(self) -> tuple[Solved, ...]:
        one = self.solved
        return tuple(replace(one, method=replace(one.method, seed=seed)) for seed in self.seeds)


@dataclass(frozen=True)
class Saved:
    """By how many per cent the step of `fast` is shorter than that of `slow`, both of one kind
    (`step` or `own`); of several seeds, the mean and the standard deviation."""

    slow: Solved
    fast: Solved | Seeds


@dataclass(frozen=True)
class Reduced:
    """A figure of a reduction. operators: before and after; groups: co-location keys of two or more
    operators; seconds: what the reduction took; ccr: communication-to-computing ratio before and
    after; path: how much longer the longest path of operator times becomes. decompose: of the
    decomposed graph."""

    on: str
    reduction: str
    figure: Literal["operators", "groups", "seconds", "ccr", "path"]
    decompose: bool = False


@dataclass(frozen=True)
class Estimated:
    """How well lines over small batches estimate the operators at the model's own batch, as
    Standard Evaluation does. divisors: the small batches are the model's own over these. of: what
    an operator holds, or its time. within: the part of the operators whose estimate is off by at
    most this part of the modelled value, of those for which it is more than 0."""

    divisors: tuple[int, ...]
    of: Literal["memory", "time"]
    within: float


@dataclass(frozen=True)
class Delays:
    """A figure of the distribution of computing delays: the thesis' alpha or beta, or the share of
    all time that the slowest tenth of operators takes. decompose: of the decomposed graph."""

    figure: Literal["alpha", "beta", "heaviest tenth"]
    decompose: bool = False


@dataclass(frozen=True)
class FusedAt:
    """The longest path after Algorithm 1 of the thesis with times_alpha times its alpha, and the
    number of operators left. decompose: of the decomposed graph."""

    times_alpha: float
    decompose: bool = False


Asked = Solved | Seeds | Saved | Reduced | Estimated | Delays | FusedAt
# Of a table: what a column shows, and our figure, or why there is none.
Column = tuple[str, Asked | str]


@dataclass(frozen=True)
class Figure:
    """model: a key of Preset.models; paper: the figure as the paper prints it; asked: our figure,
    None where there cannot be one, for the reason `why`."""

    model: str
    what: str
    paper: str
    asked: Asked | None
    why: str = ""


@dataclass(frozen=True)
class Preset:
    """devices: names of modelled devices (profile.devices) for which the graphs get times. differs:
    how our setting differs. refusal: why none of its figures can be computed here."""

    title: str
    models: Mapping[str, Captured]
    devices: tuple[str, ...]
    clusters: Mapping[str, Cluster]
    figures: Sequence[Figure]
    differs: Sequence[str]
    refusal: str = ""


def solves_of(asked: Asked | None) -> tuple[Solved, ...]:
    """The solves that a figure takes."""
    if isinstance(asked, Saved):
        return asked.slow, *solves_of(asked.fast)
    if isinstance(asked, Seeds):
        return asked.each
    return (asked,) if isinstance(asked, Solved) else ()


def shortened(preset: Preset, seconds: float) -> Preset:
    """The preset with at most `seconds` for a solve, which `differs` then says."""

    def sooner(solved: Solved) -> Solved:
        limit = min(solved.method.time_limit_seconds, seconds)
        return replace(solved, method=replace(solved.method, time_limit_seconds=limit))

    def several(solved: Solved | Seeds) -> Solved | Seeds:
        if isinstance(solved, Seeds):
            return replace(solved, solved=sooner(solved.solved))
        return sooner(solved)

    def shorter(asked: Asked | None) -> Asked | None:
        if isinstance(asked, Saved):
            return Saved(sooner(asked.slow), several(asked.fast))
        return several(asked) if isinstance(asked, Solved | Seeds) else asked

    figures = [replace(one, asked=shorter(one.asked)) for one in preset.figures]
    if figures == list(preset.figures):
        return preset
    told = f"a solve has at most {seconds:g} s, as asked for, even where more is named below"
    return replace(preset, figures=figures, differs=(told, *preset.differs))


def at_papers_times(preset: Preset) -> Preset:
    """The preset in which a solve may take as long as the paper's own did, where that is longer,
    which `differs` then says."""

    def longer(asked: Asked | None) -> Asked | None:
        if not isinstance(asked, Solved):
            return asked
        limit = max(asked.method.time_limit_seconds, asked.paper_seconds)
        return replace(asked, method=replace(asked.method, time_limit_seconds=limit))

    figures = [replace(one, asked=longer(one.asked)) for one in preset.figures]
    if figures == list(preset.figures):
        return preset
    told = "a solve has as long as the paper's own took, as asked for, where less is named below"
    return replace(preset, figures=figures, differs=(told, *preset.differs))


def solves(methods: Mapping[str, Method | str], on: str, figure: SolvedFigure) -> list[Column]:
    """A column, in seconds, for each method, or for the text that says why there is none."""
    return [
        (f"{name}, s", one if isinstance(one, str) else Solved(on, one, figure))
        for name, one in methods.items()
    ]


def table(rows: Mapping[str, Sequence[object]], columns: Sequence[Column]) -> list[Figure]:
    """rows: for each model, what the paper prints in each column."""
    return [
        Figure(model, what, str(paper), None, ours)
        if isinstance(ours, str)
        else Figure(model, what, str(paper), ours)
        for model, row in rows.items()
        for paper, (what, ours) in zip(row, columns, strict=True)
    ]


def drawing(models: Iterable[str], columns: Sequence[Column]) -> list[Figure]:
    """The same columns for each model, where the paper's text states no figure."""
    return table({model: [NOT_IN_TEXT] * len(columns) for model in models}, columns)


def equal_servers(
    count: int,
    device: str,
    memory_gib: float,
    *,
    nics: int,
    gigabits: float,
    devices: int = 1,
    inside_gigabits: float = 400.0,
    setup_seconds: float = SETUP_SECONDS,
) -> Cluster:
    """`count` servers of `devices` devices each; gigabits: payload per second and NIC; setup: of a
    message."""
    held = Device(type=device, memory_bytes=int(memory_gib * 2**30))
    rails = tuple(Nic(rail=f"r{k + 1}", rate_bits_per_second=gigabits * 1e9) for k in range(nics))
    servers = tuple(
        Server(name=f"s{k + 1}", devices=(held,) * devices, nics=rails) for k in range(count)
    )
    return Cluster(
        servers=servers,
        setup_latency_seconds=setup_seconds,
        intra_server_bits_per_second=inside_gigabits * 1e9,
    )
