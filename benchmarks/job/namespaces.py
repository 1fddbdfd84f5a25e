"""Servers as network namespaces, joined by one switch per rail; needs root, but no Open vSwitch.

Each NIC is a veth. HTB limits its rate in both directions, where the server sends and where the
switch sends to it, each with a queue as short as a port of a switch has. Nothing classifies
packets: ranks run on bare NICs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from typing import Self

_BURST_SECONDS = 0.005
_LEAST_BURST_BYTES = 8 * 1514
# So many bytes wait at a NIC or a port at most. TCP would fill more room, and acknowledgements wait
# behind the data of the other direction: an all-reduce of 64 MB took up to 8 % longer.
_QUEUE_BYTES = 128 << 10


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


class Namespaces:
    """rates_bits_per_second: wire rates by rail and server; None for a NIC without a limit.

    offloads: whether the NIC cuts segments, as real NICs do: HTB then sees large ones, and the
    processor does a tenth of the work. Without offloads, frames have the size of a real NIC's.

    Server number k (from 1, in order) has address 10.77.R.k on NIC `nicRAIL`; R is the rail's
    number.
    """

    def __init__(
        self,
        rates_bits_per_second: Mapping[str, Mapping[str, float | None]],
        label: str = "",
        *,
        offloads: bool = False,
    ) -> None:
        self.rates, self._offloads = rates_bits_per_second, offloads
        self.servers = tuple(
            dict.fromkeys(s for rail in rates_bits_per_second.values() for s in rail)
        )
        self._prefix = f"pw{label}{os.getpid()}"
        self._made: list[str] = []

    def name(self, server: str) -> str:
        return f"{self._prefix}{server}"

    def prefix(self, server: str) -> tuple[str, ...]:
        """The words before a command that make it run on this server."""
        return ("ip", "netns", "exec", self.name(server))

    def address(self, server: str, rail: str) -> str:
        return f"10.77.{list(self.rates).index(rail)}.{self.servers.index(server) + 1}"

    def nic(self, rail: str) -> str:
        return f"nic{rail}"

    def __enter__(self) -> Self:
        try:
            for name in (self._switch, *map(self.name, self.servers)):
                run("ip", "netns", "add", name)
                self._made.append(name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            for rail, rates in self.rates.items():
                bridge = f"rail{rail}"
                run("ip", "-n", self._switch, "link", "add", bridge, "type", "bridge")
                run("ip", "-n", self._switch, "link", "set", bridge, "up")
                for server, rate in rates.items():
                    self._cable(server, rail, bridge, rate)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._remove()

    def transmitted_bytes(self, server: str, rail: str) -> int:
        """The bytes of frames, headers included, that the NIC has sent since it was made."""
        shown = run("ip", "-n", self.name(server), "-s", "-j", "link", "show", self.nic(rail))
        (link,) = json.loads(shown)
        return int(link["stats64"]["tx"]["bytes"])

    @property
    def _switch(self) -> str:
        return f"{self._prefix}switch"

    def _cable(self, server: str, rail: str, bridge: str, rate: float | None) -> None:
        nic, port, name = self.nic(rail), f"{rail}{self.servers.index(server)}", self.name(server)
        ends = ((name, nic), (self._switch, port))
        run(
            "ip", "link", "add", nic, "netns", name,
            "type", "veth", "peer", port, "netns", self._switch,
        )  # fmt: skip
        for namespace, end in () if self._offloads else ends:
            # Counters and HTB then see frames of a real NIC's size.
            run(
                "ip", "netns", "exec", namespace,
                "ethtool", "-K", end, "tx", "off", "tso", "off", "gso", "off", "gro", "off",
            )  # fmt: skip
        run("ip", "-n", self._switch, "link", "set", port, "master", bridge)
        address = f"{self.address(server, rail)}/24"
        run("ip", "-n", name, "address", "add", address, "dev", nic)
        for namespace, end in ends:
            if rate is not None:
                _shape(namespace, end, rate)
            run("ip", "-n", namespace, "link", "set", end, "up")

    def _remove(self) -> None:
        for name in self._made:
            subprocess.run(
                ["ip", "netns", "del", name], capture_output=True, timeout=20, check=False
            )
        self._made.clear()


def _shape(namespace: str, nic: str, rate_bits_per_second: float) -> None:
    burst = max(round(rate_bits_per_second / 8 * _BURST_SECONDS), _LEAST_BURST_BYTES)
    tc = ("tc", "-n", namespace)
    rate = f"{round(rate_bits_per_second)}bit"
    run(*tc, "qdisc", "add", "dev", nic, "root", "handle", "1:", "htb", "default", "1")
    run(
        *tc, "class", "add", "dev", nic, "parent", "1:", "classid", "1:1",
        "htb", "rate", rate, "burst", f"{burst}b", "cburst", f"{burst}b",
    )  # fmt: skip
    run(*tc, "qdisc", "add", "dev", nic, "parent", "1:1", "bfifo", "limit", f"{_QUEUE_BYTES}")
