"""Lists the devices that this server computes with: its GPUs, or its processor without any."""

from __future__ import annotations

import os

from placewire.agent.contract.capabilities import Device
from placewire.agent.drivers.command import run
from placewire.agent.reconcile.effects import EffectError

_MEBIBYTE = 1024 * 1024
_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


def devices() -> tuple[Device, ...]:
    """In their driver's order. GPUs are found only where their driver answers."""
    try:
        return parse_gpus(run(_QUERY)) or (processor(),)
    except (EffectError, ValueError):
        return (processor(),)


def parse_gpus(text: str) -> tuple[Device, ...]:
    """text: a line `name, MiB` for each GPU. Raises ValueError."""
    rows = [line.rpartition(",") for line in text.splitlines() if line.strip()]
    return tuple(
        Device(name=name.strip(), memory_bytes=int(memory) * _MEBIBYTE) for name, _, memory in rows
    )


def processor() -> Device:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device(name="cpu", memory_bytes=memory_bytes)
