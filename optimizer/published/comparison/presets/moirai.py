"""Table V and figure 10 of "Moirai: towards optimal placement for distributed inference on
heterogeneous devices" (2023), section V."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from placewire.optimizer.cluster import Cluster, Device, Link, Server
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.presets.preset import (
    NOT_IN_TEXT,
    Captured,
    Preset,
    Solved,
    solves,
    table,
)

# Table IV's sizes; the examples have the smallest Swin-Transformer and all four of GPT-3.
MODELS = {
    "Swin 1.8B": Captured("placewire.examples.models.swin:training_step", 1),
    "GPT-3 330M": Captured("placewire.examples.models.gpt3:training_step", 1),
    "GPT-3 1.3B": Captured("placewire.examples.models.gpt3:training_step_1300m", 1),
    "GPT-3 2.7B": Captured("placewire.examples.models.gpt3:training_step_2700m", 1),
    "GPT-3 13B": Captured("placewire.examples.models.gpt3:training_step_13b", 1),
    "AlphaFold2 87M": Captured("placewire.examples.models.alphafold2:training_step", 1),
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
    "theirs is inference; ours are training steps of the same shape, of batch 1",
    "of their devices T4 and V100 are modelled; RTX 2080 Ti and 3060 Ti count as RTX 3070, P4 and "
    "P100 as T4, each with its own memory",
    f"they solve over Gurobi, we over CP-SAT, at most {LIMIT_SECONDS:g} s a solve",
    "each pair of devices has a link at the mean rate of table III",
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
    _INTER: _linked([("rtx3070", 11)], [("t4", 16)], [("t4", 8)], [("rtx3070", 8)],
                    gigabits=_BETWEEN_SERVERS),
    _INTRA: _linked([("v100", 32), ("v100", 32), ("t4", 16), ("t4", 16)], gigabits=_IN_ONE_SERVER),
}  # fmt: skip
_GRAPHS = {"original": "none", "coarsened": "gcof-inductor"}
_preset = partial(Preset, models=MODELS, devices=("rtx3070", "t4", "v100"), clusters=_CLUSTERS)
_limited = partial(Method, time_limit_seconds=LIMIT_SECONDS)

# HRL, m-SCT, GETF and Moirai on the original graph, then on the coarsened one.
_TABLE_5 = {
    "Swin 1.8B": ("4 h", "17.63 s", "2 min", "2.15 min", "4 h", "15.24 s", "1.58 min", "1.64 min"),
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
}  # fmt: skip


def table_v() -> Preset:
    methods: dict[str, Method | str] = {}
    for graph, reduction in _GRAPHS.items():
        methods[f"HRL, {graph}"] = "HRL is a learned method that the catalogue does not have"
        for name in ("m-SCT", "GETF", "Moirai"):
            methods[f"{name}, {graph}"] = _limited(name.lower(), reduction)
    figures = table(_TABLE_5, solves(methods, _INTER, "search"))
    title = "Moirai, table V: time to make a placement"
    return _preset(title, figures=figures, differs=_DIFFERS)


# What the text says of figure 10: Moirai's step is shorter by at most these factors.
_AT_MOST = {
    ("original", _INTER): {"Placeto": "2.98x", "m-SCT": "1.77x", "GETF": "1.33x"},
    ("original", _INTRA): {"Placeto": "4.12x", "m-SCT": "1.7x", "GETF": "1.35x"},
    ("coarsened", _INTER): {"Placeto": "3.15x", "m-SCT": "1.9x", "GETF": "1.25x"},
    ("coarsened", _INTRA): {"Placeto": "4.28x", "m-SCT": "1.74x", "GETF": "1.34x"},
}


def figure_10() -> Preset:
    papers, columns = [], []
    for (graph, on), most in _AT_MOST.items():
        for name in ("Moirai", "m-SCT", "GETF", "Placeto"):
            papers.append(f"Moirai {most[name]} or less" if name in most else NOT_IN_TEXT)
            reduction = "auto" if name == "Placeto" else _GRAPHS[graph]
            asked = Solved(on, _limited(name.lower(), reduction), "step")
            columns.append((f"{name}, {graph}, {on}, ms", asked))
    title = "Moirai, figure 10: step of four methods"
    more = "the drawing's figures are not in the text, which gives only the largest speed-ups"
    figures = table(dict.fromkeys(MODELS, papers), columns)
    return _preset(title, figures=figures, differs=(*_DIFFERS, more))
