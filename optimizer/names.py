"""What may be asked of the optimizer, by name: the one list of each, light enough for --help."""

from __future__ import annotations

from typing import Literal

Model = Literal["thesis", "contended", "msr"]
# What the network does with concurrent transfers: a file of network/ says it of each.
SharingName = Literal["strict", "guarantee", "job", "even", "unshaped"]
# What is asked for where nobody says: of a search, of a network without Placewire, and of a script
# by whether its plan states traffic.
DEFAULT_SHARING: SharingName = "strict"
WITHOUT_SHAPING: SharingName = "unshaped"
SHARING_OF_STATED_TRAFFIC: SharingName = "guarantee"
SHARING_OF_EVEN_TRAFFIC: SharingName = "job"
# The part of each NIC that a shaped network keeps for the job when others want it too: its floor.
DEFAULT_FLOOR = 0.8
# How the job's transport cuts a large message over a pair's rails.
#   gloo  in proportion to their rates
#   nccl  equally over all of them: the slowest rules
Backend = Literal["gloo", "nccl"]
# engines/catalog.py says where each comes from and what it can take.
EngineName = Literal[
    "auto",
    "single",
    "random",
    "sequential",
    "order-place",
    "adjusting-placement",
    "m-topo",
    "m-etf",
    "m-sct",
    "getf",
    "heft",
    "peft",
    "linear-clustering",
    "dsc",
    "metis",
    "local-search",
    "mcmc",
    "flexflow",
    "hsdag",
    "placeto",
    "moirai",
    "icc-p1",
    "icc-p2",
    "thesis-p1",
    "thesis-p2",
    "thesis-p3",
]
# What engine hsdag's policy may be asked to go without: its paper's ablations.
#   structure  in- and out-degrees, fractal dimension
#   shape      output shapes
#   position   the place in the topological order
Feature = Literal["structure", "shape", "position"]
# The order of a placement's operators.
#   own   as the engine decided it
#   list  by the longest path that is left, as HeteroG does
#   fifo  as they become ready, as FlexFlow does
SchedulerName = Literal["own", "list", "fifo"]
# Over which a published formulation is solved; auto: cp-sat for moirai, highs for the others.
SolverName = Literal["auto", "highs", "gurobi", "cp-sat"]
# How a graph is made smaller before the search; reductions/catalog.py says what each does. The
# first four are our own, the others published.
ReductionName = Literal[
    "auto",
    "none",
    "chain",
    "fusion",
    "thesis",
    "icc",
    "celeritas",
    "gcof-eigen",
    "gcof-inductor",
    "colocrl",
    "placeto",
    "spotlight",
    "pesto",
    "hsdag",
]
# Published tables and figures that `optimizer compare` asks again of our captures.
PresetName = Literal[
    "thesis-table-5.1",
    "thesis-table-5.2",
    "thesis-figure-4.3",
    "thesis-figure-4.5",
    "thesis-figure-5.2",
    "thesis-figure-5.3",
    "thesis-figure-5.4",
    "icc-table-1",
    "icc-figure-5",
    "icc-figure-6",
    "moirai-table-v",
    "moirai-figure-10",
    "hsdag-table-2",
    "hsdag-table-3",
    "celeritas-table-2",
    "celeritas-table-3",
    "celeritas-table-4",
    "celeritas-table-5",
]
# What `optimizer import` reads beside the graph file itself.
GraphFormat = Literal["thesis", "msr", "moirai", "node-link", "onnx", "chakra"]


def is_cpu(device_type: str) -> bool:
    """A device type names one hardware and software profile; a processor's begins with cpu."""
    return device_type.split(":", maxsplit=1)[0] == "cpu"


def runs_on(device_type: str) -> Literal["cpu", "cuda"]:
    """What torch calls it."""
    return "cpu" if is_cpu(device_type) else "cuda"
