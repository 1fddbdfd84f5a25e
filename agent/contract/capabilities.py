"""What a server can do, as its agent found it: datapath, the kernel's traffic control, NICs.

The compile picks from it what steers traffic into queues; the agent refuses what it rules out.
"""

from __future__ import annotations

from typing import Literal

from placewire.agent.contract.state import NicFacts
from placewire.frozen import Frozen

# What is asked of the kernel. Of the leaves only what would keep a queue short is of interest.
CLASSFUL_QDISC = "htb"
LEAF_QDISCS = ("fq_codel", "fq", "sfq", "pfifo", "bfifo")
CLASSIFIER = "u32"
CLASSIFIERS = (CLASSIFIER, "flower")

# What one NIC's software HTB was seen to carry, and where it was seen to fail: published
# measurements put it between 25 and 40 Gbit/s. Open vSwitch never asks a NIC to do it in hardware.
SOFTWARE_HTB_BITS_PER_SECOND = 25_000_000_000

Steering = Literal["set_queue", "u32"]


class TrafficControl(Frozen):
    """Kinds that the kernel took, in a network namespace that was made to ask and is gone.

    known: False where no such namespace may be made; then nothing is held against the kernel.
    """

    known: bool = False
    qdiscs: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = ()

    def lacks(self, kind: str) -> bool:
        return self.known and kind not in (*self.qdiscs, *self.classifiers)


class Device(Frozen):
    """As its driver calls it; `cpu` for the whole processor, with all memory of the server."""

    name: str
    memory_bytes: int


class Capabilities(Frozen):
    """set_queue_honoured: the kernel datapath does what a flow's set_queue says, the userspace
    datapath ignores it (Open vSwitch 3.1). offloading: NICs that can do traffic control in hardware
    (hw-tc-offload is on)."""

    datapath: Literal["system", "netdev", "none"]
    set_queue_honoured: bool
    open_vswitch_version: str
    kernel_version: str
    python_version: str
    nics: tuple[NicFacts, ...]
    traffic_control: TrafficControl = TrafficControl()
    offloading: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()

    @property
    def steering(self) -> Steering | None:
        """What leads traffic into its queue here; None: nothing could."""
        if self.datapath == "none" or self.traffic_control.lacks(CLASSFUL_QDISC):
            return None
        if self.set_queue_honoured:
            return "set_queue"
        return None if self.traffic_control.lacks(CLASSIFIER) else "u32"
