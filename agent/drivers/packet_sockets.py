"""Reads which interfaces are heard by packet sockets, as ovs-vswitchd hears those of the userspace
datapath."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from placewire.agent.drivers.command import run
from placewire.agent.reconcile.effects import EffectError

# What ovs-vswitchd has the kernel ask of each frame before it hears it (netdev-linux.c): that it
# does not go out. How much of the frame it then hears, the last number, differs between releases.
_SWITCHS_FILTER = "bpf filter (4):  0x28 0 0 4294963204, 0x15 0 1 4, 0x06 0 0 0, 0x06 0 0 "


class PacketSockets:
    """Read when they are first asked for, and once."""

    @cached_property
    def heard(self) -> frozenset[int] | None:
        """The indexes of the interfaces that packet sockets are bound to; None: the kernel does not
        say."""
        try:
            _, *lines = Path("/proc/net/packet").read_text().splitlines()
        except OSError:
            return None
        return frozenset(int(line.split()[4]) for line in lines)

    @cached_property
    def heard_by_switch(self) -> frozenset[str]:
        """The interfaces that ovs-vswitchd certainly hears; it may hear more."""
        try:
            return _heard_by_switch(run(["ss", "-0", "-b", "-n", "-H", "-O"]))
        except EffectError:
            return frozenset()


def _heard_by_switch(sockets: str) -> frozenset[str]:
    """The interfaces whose packet socket has ovs-vswitchd's filter, which lets pass what comes in;
    other programs hear interfaces, too. sockets: packet sockets as `ss -O -b` shows them."""
    return frozenset(
        words[3].partition(":")[2]
        for line in sockets.splitlines()
        if _SWITCHS_FILTER in line and len(words := line.split()) > 3
    )
