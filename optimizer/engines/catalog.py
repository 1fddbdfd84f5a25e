"""Every engine: where it comes from, what it decides, and what it can take. Light: loads none.

Any engine may be asked under any model and sharing: each decides by a view of its own, and what it
finds is scored, and checked, under the problem's.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

from placewire.optimizer.names import EngineName, ReductionName

if TYPE_CHECKING:
    from placewire.optimizer.engines.solution import Solve

_FORMULATIONS = "placewire.optimizer.published.formulations.engine"

Decides = Literal["devices", "devices, order", "devices, rates", "devices, order, rates"]


@dataclass(frozen=True)
class Engine:
    """What is said of an engine, in words.

    module: where its `solve` is. sees: the network by which it decides. memory: what it knows of
    it; whatever that is, a placement that exceeds a memory is refused. unlike: devices of unlike
    types. reduction: what `auto` means for it, None: by size.
    """

    module: str
    what: str
    paper: str
    section: str
    decides: Decides
    sees: str
    memory: str
    unlike: str
    reduction: ReductionName | None = None


_PUBLISHED = "placewire.optimizer.published.engines"
_LEARNED = "placewire.optimizer.published.learned"
_ALONE = "each transfer alone"
_SIMULATED = "the problem's own model"
_ROOM = "static sum: a device without room is passed over"
_EFFORT = "static sum; best effort where all are full"
_LIMIT = "static sum: a constraint"
_CHARGE = "the simulated peak, charged"
_BAECHI = "Jeon et al., Baechi (SoCC 2020)"
_CELERITAS = "Xu et al., Celeritas (2022)"
_MOIRAI = "Zhang et al., Moirai (2023)"
_QUICKP = "QuickP (ICC 2025)"
_THESIS = "Joint Optimization of Algebraic Transformation, Device Placement … (thesis)"

ENGINES: Mapping[EngineName, Engine] = {
    "auto": Engine(
        "placewire.optimizer.engines.auto",
        "several starts, annealing, rates by a linear program, a bound",
        "Placewire", "", "devices, order, rates", _SIMULATED, "the simulated peak", "yes",
    ),
    "single": Engine(
        "placewire.optimizer.engines.single", "the best single device",
        "Placewire", "", "devices", _SIMULATED, "the simulated peak", "yes", "none",
    ),
    "random": Engine(
        f"{_PUBLISHED}.random_placement", "any device for every operator, until one fits",
        "every paper's baseline", "", "devices", "nothing", "the simulated peak: drawn again",
        "yes", "none",
    ),
    "sequential": Engine(
        "placewire.optimizer.published.engines.sequential",
        "one device filled after the other, depth first",
        _CELERITAS, "4.2", "devices, order", "nothing", "the simulated peak", "yes", "none",
    ),
    "order-place": Engine(
        f"{_PUBLISHED}.order_place", "Order-Place: filled along critical paths",
        _CELERITAS, "5.2", "devices, order", "nothing", _EFFORT, "yes",
    ),
    "adjusting-placement": Engine(
        f"{_PUBLISHED}.adjusting_placement", "Adjusting Placement: stays, unless leaving pays",
        _CELERITAS, "5.2, algorithm 2; 6.1", "devices, order",
        "one transfer at a time at each device", _EFFORT, "yes",
    ),
    "m-topo": Engine(
        f"{_PUBLISHED}.m_topo", "filled evenly, breadth first",
        _BAECHI, "m-TOPO", "devices, order", "nothing", _EFFORT, "yes", "none",
    ),
    "m-etf": Engine(
        f"{_PUBLISHED}.m_etf", "earliest time first",
        _BAECHI, "m-ETF", "devices, order", _ALONE, _ROOM, "yes", "none",
    ),
    "m-sct": Engine(
        f"{_PUBLISHED}.m_sct", "earliest time first with favourite children",
        _BAECHI, "m-SCT", "devices, order", _ALONE, _ROOM, "mean times in its program", "none",
    ),
    "getf": Engine(
        f"{_PUBLISHED}.getf", "earliest time first within groups of devices",
        "Su et al., GETF (2020)", "GETF; group assignment", "devices, order", _ALONE, _ROOM,
        "grouped by speed", "none",
    ),
    "heft": Engine(
        "placewire.optimizer.engines.heft", "by upward rank, where it ends first",
        "Topcuoglu et al., HEFT (TPDS 2002)", "4.1", "devices, order", _ALONE, _ROOM, "yes",
    ),
    "peft": Engine(
        f"{_PUBLISHED}.peft", "by an optimistic cost table",
        "Arabnejad, Barbosa, PEFT (TPDS 2014)", "4", "devices, order", _ALONE, _ROOM, "yes",
        "none",
    ),
    "linear-clustering": Engine(
        f"{_PUBLISHED}.linear_clustering", "critical paths as clusters, balanced",
        "Kim, Browne (ICPP 1988)", "LC", "devices", _ALONE, _ROOM, "mean times", "none",
    ),
    "dsc": Engine(
        f"{_PUBLISHED}.dsc", "dominant sequence clusters, balanced",
        "Yang, Gerasoulis, DSC (TPDS 1994)", "DSC", "devices", _ALONE, _ROOM, "mean times", "none",
    ),
    "metis": Engine(
        f"{_PUBLISHED}.metis", "balanced parts, the least traffic between them",
        "Karypis, Kumar, METIS (SISC 1998)", "thesis 5.1", "devices", _ALONE, "none",
        "parts by speed; all run everything", "none",
    ),
    "local-search": Engine(
        f"{_PUBLISHED}.local_search", "the best reassignment of one operator, repeated",
        "Michiels et al. (2007)", "thesis 2.2", "devices", _SIMULATED, _CHARGE, "yes", "none",
    ),
    "mcmc": Engine(
        f"{_PUBLISHED}.mcmc", "25,000 random reassignments, from one device",
        _THESIS, "5.1", "devices", _SIMULATED, _CHARGE, "yes", "none",
    ),
    "flexflow": Engine(
        f"{_PUBLISHED}.flexflow", "Metropolis-Hastings, from a random placement",
        "Jia et al., FlexFlow (MLSys 2019)", "6", "devices", _SIMULATED, _CHARGE, "yes", "none",
    ),
    "hsdag": Engine(
        f"{_LEARNED}.hsdag", "a policy that groups operators and chooses devices, by REINFORCE",
        "Duan et al., HSDAG (NeurIPS 2024)", "2; table 4", "devices", _SIMULATED, _CHARGE, "yes",
        "none",
    ),
    "placeto": Engine(
        f"{_LEARNED}.placeto", "a policy that places node by node, by REINFORCE",
        "Addanki et al., Placeto (NeurIPS 2019)", "as others describe it", "devices", _SIMULATED,
        _CHARGE, "yes", "placeto",
    ),
    "moirai": Engine(
        _FORMULATIONS, "mixed-integer program: an order, unlike devices and channels",
        _MOIRAI, "III-D, (4)-(8)", "devices, order", "one transfer at a time at each device",
        _LIMIT, "yes", "none",
    ),
    "icc-p1": Engine(
        _FORMULATIONS, "integer program",
        _QUICKP, "(P1)", "devices", _ALONE, _LIMIT, "yes", "none",
    ),
    "icc-p2": Engine(
        _FORMULATIONS, "the same for the fused graph",
        _QUICKP, "(P2)", "devices", _ALONE, _LIMIT, "yes", "icc",
    ),
    "thesis-p1": Engine(
        _FORMULATIONS, "mixed-integer program, one bandwidth",
        _THESIS, "3.3", "devices", _ALONE, _LIMIT, "yes", "none",
    ),
    "thesis-p2": Engine(
        _FORMULATIONS, "the same, bandwidths decided",
        _THESIS, "3.5", "devices, rates", _ALONE, _LIMIT, "yes", "none",
    ),
    "thesis-p3": Engine(
        _FORMULATIONS, "the same for the reduced graph",
        _THESIS, "4.3", "devices, rates", _ALONE, _LIMIT, "yes", "thesis",
    ),
}  # fmt: skip


def load(name: EngineName) -> Solve:
    """Imports the engine and what it needs, nothing of the others."""
    engine = ENGINES[name]
    solve = importlib.import_module(engine.module).solve
    return cast("Solve", partial(solve, name) if engine.module == _FORMULATIONS else solve)
