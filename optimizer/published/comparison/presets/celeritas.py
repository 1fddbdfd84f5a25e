"""Tables of "Celeritas: fast optimizer for large dataflow graphs" (2022), sections 5.1 and 6."""

from __future__ import annotations

from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.presets.preset import (
    Captured,
    Figure,
    Preset,
    Reduced,
    Solved,
    equal_servers,
    method,
)

# Section 6.2.1, with its batches.
MODELS = {
    "Inception-V3": Captured("placewire.examples.models.inception:training_step", 512),
    "NMT": Captured("placewire.examples.models.gnmt:training_step", 512),
    "Transformer": Captured("placewire.examples.models.transformer:training_step", 256),
    "Tensor Holography": Captured("placewire.examples.models.holography:training_step", 32),
}
DEVICE, MEMORY_GIB = "v100", 32
# Four GPUs of one server on the PCIe bus; 12 GB/s is what 16 lanes of its third version carry.
PCIE_GIGABITS = 96.0
LIMIT_SECONDS = 130.0

_DIFFERS = (
    "their graphs are TensorFlow's, of 3,810 to 36,352 operators; ours are ATen's",
    "their times are measured on a V100, ours are modelled for one; the rate of their PCIe bus is "
    f"not stated: here {PCIE_GIGABITS:g} Gbit/s a pair of GPUs",
)
_HRL = "HRL groups and places by learned policies, which no engine of the catalogue does so"

_CLUSTERS = {
    "4 GPUs": equal_servers(
        1, DEVICE, MEMORY_GIB, nics=0, gigabits=1.0, devices=4, inside_gigabits=PCIE_GIGABITS
    )
}


# Nodes and CCR before, nodes and CCR after.
_TABLE_2 = {
    "Inception-V3": ("6332 -> 59", "33.118 -> 8.137"),
    "NMT": ("25463 -> 154", "18.630 -> 6.372"),
    "Transformer": ("36352 -> 220", "111.957 -> 11.10"),
    "Tensor Holography": ("3810 -> 37", "49.147 -> 7.438"),
}


def table_2() -> Preset:
    figures = []
    for model, (operators, ratio) in _TABLE_2.items():
        nodes, ccr = (Reduced("4 GPUs", "celeritas", kind) for kind in ("operators", "ccr"))
        figures += [
            Figure(model, "operators", operators, nodes),
            Figure(model, "communication-to-computing ratio", ratio, ccr),
        ]
    title = "Celeritas, table 2: operators and CCR before and after its fusion"
    return Preset(title, MODELS, (DEVICE,), _CLUSTERS, figures, _DIFFERS)


_METHODS: dict[str, Method | None] = {
    "Metis": method("metis"),
    "m-TOPO": method("m-topo", limit_seconds=LIMIT_SECONDS),
    "m-ETF": method("m-etf", limit_seconds=LIMIT_SECONDS),
    "m-SCT": method("m-sct", limit_seconds=LIMIT_SECONDS),
    "HRL": None,
    "Order-Place": method("order-place", "celeritas", limit_seconds=LIMIT_SECONDS),
    "Celeritas": method("adjusting-placement", "celeritas", limit_seconds=LIMIT_SECONDS),
}
_TABLE_3 = {
    "Inception-V3": ("OOM", "3.100", "10.548", "7.610", "8.565", "2.931", "2.859"),
    "NMT": ("OOM", "OOM", "OOM", "OOM", "10.224", "9.117", "9.099"),
    "Transformer": ("OOM", "OOM", "8.613", "8.411", "42.837", "6.935", "6.536"),
    "Tensor Holography": ("6.591", "2.220", "6.376", "6.013", "3.683", "1.520", "1.461"),
}


def table_3() -> Preset:
    figures = []
    for model, row in _TABLE_3.items():
        for paper, (name, asked) in zip(row, _METHODS.items(), strict=True):
            ours = None if asked is None else Solved("4 GPUs", asked, "step")
            figures.append(Figure(model, f"{name}, s", paper, ours, _HRL if ours is None else ""))
        search = Solved("4 GPUs", method("auto"), "step")
        figures.append(Figure(model, "auto, s", "-", search))
    more = "theirs are measured steps, ours are simulated under contended"
    title = "Celeritas, table 3: step on four GPUs"
    return Preset(title, MODELS, (DEVICE,), _CLUSTERS, figures, (*_DIFFERS, more))


_TABLE_4 = {
    "Inception-V3": ("8.591", "5 hrs", "5.439", "7.183"),
    "NMT": ("-", "5 hrs", "54.695", "59.418"),
    "Transformer": ("129.498", "5 hrs", "92.639", "95.304"),
    "Tensor Holography": ("2.968", "5 hrs", "2.711", "3.586"),
}


def table_4() -> Preset:
    names = ("m-SCT", "HRL", "Order-Place", "Celeritas")
    figures = []
    for model, row in _TABLE_4.items():
        for paper, name in zip(row, names, strict=True):
            asked = _METHODS[name]
            ours = None if asked is None else Solved("4 GPUs", asked, "search")
            figures.append(Figure(model, f"{name}, s", paper, ours, _HRL if ours is None else ""))
    title = "Celeritas, table 4: time to make a placement"
    return Preset(title, MODELS, (DEVICE,), _CLUSTERS, figures, _DIFFERS)


def table_5() -> Preset:
    return Preset(
        "Celeritas, table 5: estimated against measured operators", MODELS, (DEVICE,), _CLUSTERS,
        (), (),
        refusal="table 5 compares operators' times and memory as estimated with what was then "
        "measured: that takes the steps to be run, and a comparison runs none. `controller "
        "evaluate MODEL` measures both on this machine's devices",
    )  # fmt: skip
