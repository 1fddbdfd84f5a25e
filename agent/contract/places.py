"""Where a device is in its server, by which the way from one to another is long or short."""

from __future__ import annotations

from placewire.agent.contract.numbers import Count
from placewire.frozen import Frozen


class PciPlace(Frozen):
    """address: domain:bus:device.function, as the kernel writes it ("0000:65:00.0"). numa_node:
    None where the firmware names none, as on a server with one. above: the host bridge and the PCI
    bridges on the way to the device, the outermost first ("pci0000:64", "0000:64:00.0")."""

    address: str
    numa_node: Count | None = None
    above: tuple[str, ...] = ()

    def bridges_shared_with(self, other: PciPlace) -> int:
        """How many of the bridges above are above both. 0: their data crosses the processor's own
        network, as all does from one NUMA node to another."""
        pairs = list(zip(self.above, other.above, strict=False))
        return next((k for k, (one, another) in enumerate(pairs) if one != another), len(pairs))

    @property
    def text(self) -> str:
        node = "" if self.numa_node is None else f", NUMA node {self.numa_node}"
        return f"{self.address}{node}"
