"""Reads how many bytes each interface of this network namespace has sent and received."""

from __future__ import annotations

from pathlib import Path

from placewire.agent.contract.measurement import InterfaceCounters

# Shows the process's own network namespace; /sys shows the one that it was mounted in.
_DEVICES = Path("/proc/self/net/dev")


def read_counters(interfaces: tuple[str, ...]) -> tuple[InterfaceCounters, ...]:
    """The counters of those interfaces that exist, in the order of `interfaces`."""
    found = parse_devices(_DEVICES.read_text(errors="backslashreplace"))
    return tuple(found[name] for name in interfaces if name in found)


def parse_devices(text: str) -> dict[str, InterfaceCounters]:
    """text: /proc/net/dev: two heading lines, then `name: 8 receive and 8 transmit columns`."""
    found = {}
    for line in filter(None, text.split("\n")[2:]):
        name, _, columns = line.rpartition(":")
        numbers = [int(number) for number in columns.split()]
        found[name.strip()] = InterfaceCounters(
            interface=name.strip(), receive_bytes=numbers[0], transmit_bytes=numbers[8]
        )
    return found
