"""The name of a device, `server/index`, and its parts. No server's name has a slash in it."""

from __future__ import annotations


def device_name(server: str, index: int) -> str:
    return f"{server}/{index}"


def server_of(device: str) -> str:
    return device.rpartition("/")[0]


def index_of(device: str) -> int:
    """The device's place among those of its server, from 0."""
    return int(device.rpartition("/")[2])
