"""Reads from sysfs where devices are in this server. `sysfs` is where that is mounted."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from placewire.agent.contract.places import PciPlace

_SYSFS = Path("/sys")
_HOST_BRIDGE = re.compile(r"pci[\da-f]{4,}:[\da-f]{2}")
_ADDRESS = re.compile(r"[\da-f]{4,}:[\da-f]{2}:[\da-f]{2}\.[\da-f]")
_NVIDIA = "0x10de"
# Of a PCI class: display controllers, as VGA (0x0300) and 3D (0x0302) ones.
_DISPLAY = "0x03"


def place_of_nic(name: str, sysfs: Path = _SYSFS) -> PciPlace | None:
    """None where it is on no PCI bus, as a veth, or is gone."""
    device = sysfs / "class/net" / name / "device"
    return _place(device) if device.exists() else None


def place_of(address: str, sysfs: Path = _SYSFS) -> PciPlace | None:
    """address: as NVIDIA's driver writes it too, with a domain of eight digits. None where no
    device is there."""
    domain, _, rest = address.lower().partition(":")
    device = sysfs / "bus/pci/devices" / f"{domain[-4:]}:{rest}"
    return _place(device) if _ADDRESS.fullmatch(device.name) and device.exists() else None


def nvidia_gpus(sysfs: Path = _SYSFS) -> tuple[str, ...]:
    """The PCI addresses of NVIDIA's GPUs, whether or not their driver runs."""
    found = []
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        if _read(device / "vendor") == _NVIDIA and _read(device / "class").startswith(_DISPLAY):
            found.append(device.name)
    return tuple(found)


def _place(link: Path) -> PciPlace | None:
    """Returns the place of the innermost PCI device on the way to what the link leads to: a virtio
    NIC is beneath one."""
    path = link.resolve()
    on_pci = [k for k, part in enumerate(path.parts) if _ADDRESS.fullmatch(part)]
    if not on_pci:
        return None
    *above, address = path.parts[: on_pci[-1] + 1]
    node = _read(Path(*above, address) / "numa_node")
    return PciPlace(
        address=address,
        numa_node=int(node) if node.isdecimal() else None,  # -1: none is named
        above=tuple(p for p in above if _ADDRESS.fullmatch(p) or _HOST_BRIDGE.fullmatch(p)),
    )


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text().strip()
    return ""
