"""A device's name, `server/index`, and its parts; a server's name never contains a slash."""

from __future__ import annotations


def device_name(server: str, index: int) -> str:
    return f"{server}/{index}"


def server_of(device: str) -> str:
    return device.rpartition("/")[0]


def index_of(device: str) -> int:
    """The device's position on its server, from 0."""
    return int(device.rpartition("/")[2])
