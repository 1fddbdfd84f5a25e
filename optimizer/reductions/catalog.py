"""Every reduction: where it comes from, what it does, and what it can take. Light: loads none.

Our own stand beside this file, the published ones in published/.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placewire.optimizer.names import ReductionName

if TYPE_CHECKING:
    from placewire.optimizer.reductions.chain import Reduction


@dataclass(frozen=True)
class Entry:
    """What is said of a reduction, in words.

    code: the reductions that it consists of, one on the other's result, each as module:function.
    takes: which graphs; others are refused. Memory, unlike devices and co-location keys are minded
    by all of them.
    """

    code: tuple[str, ...]
    what: str
    paper: str
    section: str
    takes: str


_HERE = "placewire.optimizer.reductions"
_PUBLISHED = "placewire.optimizer.published.reductions"
_OURS = "Placewire"
_CELERITAS = "Xu et al., Celeritas (2022)"
_MOIRAI = "Zhang et al., Moirai (2023)"
_QUICKP = "QuickP (ICC 2025)"
_THESIS = "Joint Optimization of Algebraic Transformation, Device Placement … (thesis)"
_ANY = "any graph"
_TYPED = "graphs with operator types of ATen, ONNX or TensorFlow"

REDUCTIONS: Mapping[ReductionName, Entry] = {
    "auto": Entry(
        (f"{_HERE}.mild:reduce_mildly",),
        "by size: nothing, chains, or to 500 operators with a hardly longer critical path",
        _OURS, "", _ANY,
    ),
    "none": Entry((), "nothing", _OURS, "", _ANY),
    "chain": Entry(
        (f"{_HERE}.fusion:fuse",),
        "chains and operators without cost (algorithm 1 of the thesis with alpha 0)",
        _OURS, "", _ANY,
    ),
    "fusion": Entry(
        (f"{_HERE}.colocation:merge_colocated", f"{_HERE}.fusion:fuse"),
        "the same, after what is co-located became one operator where no cycle arises",
        _OURS, "", _ANY,
    ),
    "thesis": Entry(
        (f"{_PUBLISHED}.iterate:reduce_as_thesis",),
        "fusion and co-location by rank in turns, then expansion of the groups",
        _THESIS, "4.1-4.3, algorithm 2", _ANY,
    ),
    "icc": Entry(
        (f"{_PUBLISHED}.iterate:reduce_as_icc",),
        "fusion, then co-location by rank",
        _QUICKP, "IV, algorithm 1, (7)", _ANY,
    ),
    "celeritas": Entry(
        (f"{_PUBLISHED}.celeritas:reduce_as_celeritas",),
        "Optimal Operation Fusion: CPD-TOPO order cut where least is sent",
        _CELERITAS, "5.1, algorithm 1, (2)-(6)", "any graph; leaves few clusters of small ones",
    ),
    "gcof-eigen": Entry(
        (f"{_PUBLISHED}.gcof:reduce_as_eigen",),
        "GCOF: what Eigen's rules fuse",
        _MOIRAI, "III-B, algorithm 1, table I", _TYPED,
    ),
    "gcof-inductor": Entry(
        (f"{_PUBLISHED}.gcof:reduce_as_inductor",),
        "GCOF: what rules in the style of torch's inductor fuse",
        _MOIRAI, "III-B, algorithm 1", _TYPED,
    ),
    "colocrl": Entry(
        (f"{_PUBLISHED}.colocrl:reduce_as_colocrl",),
        "co-location with an only successor; fuses nothing",
        "Mirhoseini et al., ColocRL (ICML 2017)", "thesis 5.3", _ANY,
    ),
    "placeto": Entry(
        (f"{_PUBLISHED}.placeto:reduce_as_placeto",),
        "the cheapest operator into a neighbour, to the size that `thesis` leaves",
        "Addanki et al., Placeto (NeurIPS 2019)", "thesis 5.3", _ANY,
    ),
    "spotlight": Entry(
        (f"{_PUBLISHED}.spotlight:reduce_as_spotlight",),
        "operators whose modules or ids share their first two levels",
        "Gao et al., Spotlight (ICML 2018)", "thesis 5.3",
        "captured graphs, and those whose ids are paths, like sequential_1/conv2d_1/Reshape",
    ),
    "pesto": Entry(
        (f"{_PUBLISHED}.pesto:reduce_as_pesto",),
        "batches of edges that make no cycle, to 200 operators",
        "Hafeez et al., Pesto (Middleware 2021)", "thesis 2.2, 2.3, 3.3, 4.1", _ANY,
    ),
    "hsdag": Entry(
        (f"{_PUBLISHED}.hsdag:reduce_as_hsdag",),
        "chains of only child and only parent",
        "Duan et al., HSDAG (2024)", "appendix G", _ANY,
    ),
}  # fmt: skip


def load(name: ReductionName) -> tuple[Reduction, ...]:
    """Imports what it consists of and needs, nothing of the others."""
    parts = [path.split(":") for path in REDUCTIONS[name].code]
    return tuple(getattr(importlib.import_module(module), function) for module, function in parts)
