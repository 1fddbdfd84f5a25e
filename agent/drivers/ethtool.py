"""Reads an interface's driver and speed by ethtool's ioctl; sets offloads by its command."""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from placewire.agent.drivers.command import run

_SIOCETHTOOL = 0x8946
_GET_SETTINGS = 0x00000001
_GET_DRIVER = 0x00000003
_SETTINGS_BYTES = 44
_DRIVER_BYTES = 196
_UNKNOWN_SPEED_MEGABITS = (0, 0xFFFF, 0xFFFFFFFF)


def driver(interface: str) -> str | None:
    data = _ask(interface, _GET_DRIVER, _DRIVER_BYTES)
    return data[4:36].split(b"\0")[0].decode(errors="backslashreplace") or None if data else None


def speed_bits_per_second(interface: str) -> int | None:
    """None where the link is down or the driver does not say."""
    data = _ask(interface, _GET_SETTINGS, _SETTINGS_BYTES)
    if data is None:
        return None
    low, high = struct.unpack_from("=H14xH", data, 12)
    megabits = high << 16 | low
    return None if megabits in _UNKNOWN_SPEED_MEGABITS else megabits * 1_000_000


def switch_offloads_off(interface: str) -> None:
    """The userspace datapath forwards frames as they are: the receiver would drop a frame without
    its checksum, and the next link a segment of 64 kB."""
    run(["ethtool", "-K", interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off"])


def _ask(interface: str, command: int, size: int) -> bytes | None:
    data = array.array("B", struct.pack("=I", command) + bytes(size - 4))
    address, _ = data.buffer_info()
    request = struct.pack("16sP", interface.encode(), address).ljust(40, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            fcntl.ioctl(probe, _SIOCETHTOOL, request)
        except OSError:
            return None
    return data.tobytes()
