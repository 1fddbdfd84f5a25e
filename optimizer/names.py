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


def is_cpu(device_type: str) -> bool:
    """A device type names one hardware and software profile; a processor's begins with cpu."""
    return device_type.split(":", maxsplit=1)[0] == "cpu"


def runs_on(device_type: str) -> Literal["cpu", "cuda"]:
    """What torch calls it."""
    return "cpu" if is_cpu(device_type) else "cuda"
