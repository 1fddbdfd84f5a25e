"""Table V and figure 10 of "Moirai: towards optimal placement for distributed inference on
heterogeneous devices" (2023), section IV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from placewire.optimizer.cluster import Cluster, Device, Link, Server
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.presets.preset import (
    NOT_IN_TEXT,
    Captured,
    Figure,
    Preset,
    Solved,
    SolvedFigure,
)

_model = partial(Captured, batch=1, inference=True, half=True)
_SWIN, _GPT_3, _ALPHAFOLD_2 = (
    f"placewire.examples.models.{name}:training_step" for name in ("swin", "gpt3", "alphafold2")
)
# Table IV's sizes.
MODELS = {
    "Swin 1.8B": _model(_SWIN),
    "Swin 6.6B": _model(f"{_SWIN}_6600m"),
    "Swin 13B": _model(f"{_SWIN}_13b"),
    "GPT-3 330M": _model(_GPT_3),
    "GPT-3 1.3B": _model(f"{_GPT_3}_1300m"),
    "GPT-3 2.7B": _model(f"{_GPT_3}_2700m"),
    "GPT-3 13B": _model(f"{_GPT_3}_13b"),
    "AlphaFold2 87M": _model(_ALPHAFOLD_2),
    "AlphaFold2 930M": _model(f"{_ALPHAFOLD_2}_930m"),
    "AlphaFold2 2.4B": _model(f"{_ALPHAFOLD_2}_2400m"),
    "AlphaFold2 3.2B": _model(f"{_ALPHAFOLD_2}_3200m"),
}
LIMIT_SECONDS = 120.0
_PAIR_SETUP_SECONDS = 50e-6

# Table III: gigabits per second from each device to every other; 0 to itself.
_BETWEEN_SERVERS = (
    (0.0, 44.26, 32.92, 44.28),
    (42.39, 0.0, 35.32, 44.51),
    (33.20, 35.31, 0.0, 32.95),
    (42.08, 43.22, 33.28, 0.0),
)
_IN_ONE_SERVER = (
    (0.0, 1170.04, 626.10, 610.56),
    (1148.16, 0.0, 618.98, 581.09),
    (630.43, 609.82, 0.0, 571.96),
    (622.67, 575.08, 581.35, 0.0),
)
_DIFFERS = (
    "the precision of theirs is not stated; ours is half, in which the models of 13 thousand "
    "million parameters fit into the 43 GiB of the devices between servers; single does not",
    "their graphs have an operator for each step of each attention head (table IV's counts are 11 "
    "and 12 a head in every layer); our attention is one operator",
    "their times are measured; ours are modelled for the same devices, from their data sheets",
    "they solve over Gurobi, we Moirai over CP-SAT and GETF over HiGHS, at most "
    f"{LIMIT_SECONDS:g} s a solve; --paper-times gives each the paper's own time, up to 39 min",
    f"each pair of devices has a link at the mean rate of table III, on which a message also takes "
    f"{1e6 * _PAIR_SETUP_SECONDS:g} us, where the paper counts its size alone",
    "coarsening's rules are Inductor's here, which take more kinds of operators than Eigen's, of "
    "which table I has three as examples",
    "AlphaFold2 is the embedding and the Evoformer, on alignments of 128 sequences of 256 residues",
)


def _linked(*held: Sequence[tuple[str, int]], gigabits: Sequence[Sequence[float]]) -> Cluster:
    """held: (device type, GiB) of each device of each server."""
    servers = tuple(
        Server(name=f"s{k}", nics=(),
               devices=tuple(Device(type=kind, memory_bytes=gib * 2**30) for kind, gib in types))
        for k, types in enumerate(held, 1)
    )  # fmt: skip
    names = [f"{server.name}/{k}" for server in servers for k in range(len(server.devices))]
    links = tuple(
        Link(source=a, destination=b, setup_latency_seconds=_PAIR_SETUP_SECONDS,
             rate_bits_per_second=gigabits[i][j] * 1e9)
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i != j
    )  # fmt: skip
    return Cluster(servers=servers, setup_latency_seconds=_PAIR_SETUP_SECONDS,
                   intra_server_bits_per_second=1e12, links=links)  # fmt: skip


_INTER, _INTRA = "between servers", "in one server"
_CLUSTERS = {
    _INTER: _linked([("rtx2080ti", 11)], [("t4", 16)], [("p4", 8)], [("rtx3060ti", 8)],
                    gigabits=_BETWEEN_SERVERS),
    _INTRA: _linked([("v100", 32), ("v100", 32), ("p100", 16), ("p100", 16)],
                    gigabits=_IN_ONE_SERVER),
}  # fmt: skip
_GRAPHS = {"original": "none", "coarsened": "gcof-inductor"}
_preset = partial(
    Preset, models=MODELS, devices=("rtx2080ti", "t4", "p4", "rtx3060ti", "v100", "p100"),
    clusters=_CLUSTERS, differs=_DIFFERS,
)  # fmt: skip
_ENGINES = {"m-SCT": "m-sct", "GETF": "getf-program", "Moirai": "moirai", "Placeto": "placeto"}

# HRL, m-SCT, GETF and Moirai on the original graph, then on the coarsened one.
_TABLE_5: dict[str, tuple[str, ...]] = {
    "Swin 1.8B": ("4 h", "17.63 s", "2 min", "2.15 min", "4 h", "15.24 s", "1.58 min", "1.64 min"),
    "Swin 6.6B": ("5 h", "64.32 s", "12.4 min", "13.28 min", "4.8 h", "58.57 s", "9.72 min",
                  "10.51 min"),
    "Swin 13B": ("5 h", "148.25 s", "19.75 min", "22.54 min", "5 h", "142.9 s", "14.95 min",
                 "15.46 min"),
    "GPT-3 330M": ("3.5 h", "15.92 s", "1.25 min", "1.38 min", "3 h", "14.4 s", "58.04 s",
                   "1.04 min"),
    "GPT-3 1.3B": ("4 h", "39.82 s", "8.65 min", "9.02 min", "3.85 h", "37.39 s", "5.29 min",
                   "6.88 min"),
    "GPT-3 2.7B": ("5 h", "54.17 s", "10.82 min", "11.48 min", "4.75 h", "51.52 s", "7.84 min",
                   "8.51 min"),
    "GPT-3 13B": ("5.5 h", "125.53 s", "15.7 min", "16.5 min", "5 h", "117.48 s", "10.92 min",
                  "11.07 min"),
    "AlphaFold2 87M": ("3.5 h", "20.18 s", "1.78 min", "1.9 min", "3.3 h", "18.62 s", "1.24 min",
                       "1.38 min"),
    "AlphaFold2 930M": ("5 h", "56.62 s", "11.05 min", "12.87 min", "4.82 h", "53.71 s", "7.95 min",
                        "8.75 min"),
    "AlphaFold2 2.4B": ("5.75 h", "226.34 s", "22.5 min", "23.91 min", "5 h", "215.48 s",
                        "17.92 min", "18.02 min"),
    "AlphaFold2 3.2B": ("7 h", "507.65 s", "35.75 min", "38.42 min", "6.5 h", "485.35 s",
                        "21.5 min", "22.18 min"),
}  # fmt: skip
_COLUMNS = tuple((name, graph) for graph in _GRAPHS for name in ("HRL", "m-SCT", "GETF", "Moirai"))
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _papers(model: str) -> dict[tuple[str, str], str]:
    """What table V prints, by method and graph."""
    return dict(zip(_COLUMNS, _TABLE_5[model], strict=True))


def _seconds(printed: str) -> float:
    number, unit = printed.split()
    return float(number) * _UNITS[unit]


def _solved(model: str, name: str, graph: str, on: str, figure: SolvedFigure) -> Solved:
    """Placeto, of which table V says nothing, is a search that has the preset's own time."""
    reduction = "auto" if name == "Placeto" else _GRAPHS[graph]
    method = Method(_ENGINES[name], reduction, time_limit_seconds=LIMIT_SECONDS)
    paper = _papers(model).get((name, graph))
    return Solved(on, method, figure, 0.0 if paper is None else _seconds(paper))


def table_v() -> Preset:
    no_hrl = "HRL trains as long as it is given time, here minutes, so that its time says nothing"
    figures = [
        Figure(model, f"{name}, {graph}, s", paper, None, no_hrl)
        if name == "HRL"
        else Figure(
            model, f"{name}, {graph}, s", paper, _solved(model, name, graph, _INTER, "search")
        )
        for model in MODELS
        for (name, graph), paper in _papers(model).items()
    ]
    return _preset("Moirai, table V: time to make a placement", figures=figures)


# What the text says of figure 10: Moirai's step is shorter by at most these factors.
AT_MOST = {
    ("original", _INTER): {"Placeto": 2.98, "m-SCT": 1.77, "GETF": 1.33},
    ("original", _INTRA): {"Placeto": 4.12, "m-SCT": 1.7, "GETF": 1.35},
    ("coarsened", _INTER): {"Placeto": 3.15, "m-SCT": 1.9, "GETF": 1.25},
    ("coarsened", _INTRA): {"Placeto": 4.28, "m-SCT": 1.74, "GETF": 1.34},
}


def figure_10() -> Preset:
    figures = [
        Figure(
            model,
            f"{name}, {graph}, {on}, ms",
            f"Moirai {most[name]:g}x or less" if name in most else NOT_IN_TEXT,
            _solved(model, name, graph, on, "step"),
        )
        for model in MODELS
        for (graph, on), most in AT_MOST.items()
        for name in ("Moirai", "m-SCT", "GETF", "Placeto")
    ]
    more = (
        "the drawing's figures are not in the text, which gives only the largest speed-ups",
        "Placeto has its own reduction, that of its paper, in place of coarsening: its placement "
        "of the original graph and of the coarsened one is one solve",
    )
    title = "Moirai, figure 10: step of four methods"
    return replace(_preset(title, figures=figures), differs=(*_DIFFERS, *more))
