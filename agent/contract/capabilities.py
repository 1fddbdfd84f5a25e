"""The capabilities of a server, as its agent found them: datapath, traffic control, NICs.

The compiler chooses by it what steers traffic; the agent refuses what the server cannot do.
"""

from __future__ import annotations

from typing import Literal

from placewire.agent.contract.numbers import Count
from placewire.agent.contract.places import PciPlace
from placewire.agent.contract.state import NicFacts
from placewire.frozen import Frozen

# The kinds that the agent asks the kernel for; of leaf disciplines, those that keep queues short.
CLASSFUL_QDISC = "htb"
LEAF_QDISCS = ("fq_codel", "fq", "sfq", "pfifo", "bfifo")
CLASSIFIER = "u32"
CLASSIFIERS = (CLASSIFIER, "flower")

# The rate that one NIC's software HTB surely carries. Published measurements put its limit between
# 25 and 40 Gbit/s. Open vSwitch never asks a NIC to do HTB in hardware.
SOFTWARE_HTB_BITS_PER_SECOND = 25_000_000_000

Steering = Literal["set_queue", "u32"]


class TrafficControl(Frozen):
    """The kinds that the kernel accepted in a network namespace made for the question.

    known: False where no such namespace may be made; the kernel is then assumed to have every kind.
    """

    known: bool = False
    qdiscs: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = ()

    def lacks(self, kind: str) -> bool:
        return self.known and kind not in (*self.qdiscs, *self.classifiers)


class Device(Frozen):
    """name: as its driver calls it; `cpu` is the whole processor, with all memory of the server.
    place: of a GPU, where it is known. mig: whether NVIDIA's MIG cuts it into instances; ranks take
    whole GPUs only."""

    name: str
    memory_bytes: Count
    place: PciPlace | None = None
    mig: bool = False


class Capabilities(Frozen):
    """set_queue_honoured: whether the datapath obeys a flow's set_queue. The kernel datapath does;
    the userspace datapath ignores it (Open vSwitch 3.1). offloading: NICs that can do traffic
    control in hardware (hw-tc-offload is on). gpu_problem: why GPUs are not among the devices that
    this server has, or may have; "": none. gpus_unread: whether NVIDIA's driver has not said yet
    which GPUs there are; the agent says hello again once it has."""

    datapath: Literal["system", "netdev", "none"]
    set_queue_honoured: bool
    open_vswitch_version: str
    kernel_version: str
    python_version: str
    nics: tuple[NicFacts, ...]
    traffic_control: TrafficControl = TrafficControl()
    offloading: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    gpu_problem: str = ""
    gpus_unread: bool = False

    @property
    def steering(self) -> Steering | None:
        """The way to steer traffic into its queue on this server; None where there is none."""
        if self.datapath == "none" or self.traffic_control.lacks(CLASSFUL_QDISC):
            return None
        if self.set_queue_honoured:
            return "set_queue"
        return None if self.traffic_control.lacks(CLASSIFIER) else "u32"
