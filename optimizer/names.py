"""The names of models, sharings and backends, and their defaults; imports nothing that is slow."""

from __future__ import annotations

from typing import Literal

Model = Literal["thesis", "contended", "msr"]
# What the network does with concurrent transfers; network/ has a file for each.
SharingName = Literal["strict", "guarantee", "job", "even", "unshaped"]
# The sharing of a `Problem` and of `optimizer solve` that name none. A plan that names none has
# `auto`, as we advise users. Here it is `strict`, because what one search of one sharing gives is
# what is compared: the papers' programs decide a rate for each pair, every method of a comparison
# is scored under it, and a learned engine writes one policy and one curve.
DEFAULT_SHARING: SharingName = "strict"
# Of a network without Placewire, and of a script whose plan states its traffic or does not.
WITHOUT_SHAPING: SharingName = "unshaped"
SHARING_OF_STATED_TRAFFIC: SharingName = "guarantee"
SHARING_OF_EVEN_TRAFFIC: SharingName = "job"
# The floor: the part of each NIC that a shaped network keeps for the job when others want it too.
DEFAULT_FLOOR = 0.8
# How the job's transport cuts a large message over a pair's rails.
#   gloo  in proportion to their rates
#   nccl  equally over all of them, so that the slowest rail decides
Backend = Literal["gloo", "nccl"]


def is_cpu(device_type: str) -> bool:
    """Whether a device type is of a processor: `cpu`, or a name that begins with `cpu:`."""
    return device_type.split(":", maxsplit=1)[0] == "cpu"


def runs_on(device_type: str) -> Literal["cpu", "cuda"]:
    """What torch calls a device of this type."""
    return "cpu" if is_cpu(device_type) else "cuda"
