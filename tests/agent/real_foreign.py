"""What others make inside ours on a real server: on our bridge, on our queues, in our tables and
among our priorities. It carries no mark of ours, and so must never be changed or removed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.agent.server_under_test import ServerUnderTest

_FLOWS = "unix:$OVS_RUNDIR/pw-nic0.mgmt"


@dataclass(frozen=True)
class Theirs:
    """Commands that make it, look whether it is there, and remove it. mark: what every sentence of
    the oracle about it has in it."""

    name: str
    make: str
    look: str
    remove: str
    mark: str


INSIDE: Sequence[Theirs] = (
    Theirs(
        "an address on our bridge",
        "ip address add 10.66.1.1/24 dev pw-nic0",
        "ip -4 address show dev pw-nic0 | grep -qF 10.66.1.1/24",
        "ip address del 10.66.1.1/24 dev pw-nic0",
        "10.66.1.",
    ),
    Theirs(
        "a flow on our bridge",
        f"ovs-ofctl add-flow {_FLOWS} cookie=7,priority=5,ip,nw_dst=10.66.2.2,actions=NORMAL",
        f"ovs-ofctl --no-stats dump-flows {_FLOWS} | grep -qF nw_dst=10.66.2.2",
        f"ovs-ofctl del-flows {_FLOWS} cookie=7/-1",
        "10.66.2.",
    ),
    Theirs(
        "a filter on our queues",
        "tc filter add dev nic0 parent 1: protocol ip pref 10 u32 "
        "match ip dst 10.66.3.3/32 flowid 1:1",
        "tc filter show dev nic0 | grep -qF 0a420303",
        "tc filter del dev nic0 parent 1: protocol ip pref 10",
        " pref 10 ",
    ),
    Theirs(
        "a route over our bridge in our table",
        "ip route add 10.66.4.0/24 dev pw-nic0 table 8007",
        "ip route show table 8007 | grep -qF 10.66.4.0/24",
        "ip route del 10.66.4.0/24 table 8007",
        "10.66.4.",
    ),
    Theirs(
        "a rule of our priorities",
        "ip rule add from 10.66.5.0/24 table 100 priority 18007",
        "ip rule show | grep -q '^18007:.*10.66.5.0/24'",
        "ip rule del priority 18007 table 100",
        " 18007",
    ),
)


class TheirsInside:
    """What was made on one server, until `remove`."""

    def __init__(self, server: ServerUnderTest) -> None:
        self._server = server
        self.made: list[Theirs] = []

    def make(self, rng: random.Random) -> None:
        """Makes some of them, where ours is there to make them in."""
        for theirs in rng.sample(INSIDE, 3):
            self._server.sh(theirs.make, check=False)
            if self._is_there(theirs):
                self.made.append(theirs)

    def touched(self) -> list[str]:
        return [
            f"{theirs.name}, which is not ours, was touched"
            for theirs in self.made
            if not self._is_there(theirs)
        ]

    def remove(self) -> None:
        """Does what an operator does who reads why the agent cannot go on."""
        for theirs in self.made:
            self._server.sh(theirs.remove, check=False)
        self.made.clear()

    def without(self, sentences: Sequence[str]) -> list[str]:
        """The sentences of the oracle that are not about these."""
        marks = [theirs.mark for theirs in self.made]
        return [line for line in sentences if not any(mark in line for mark in marks)]

    def _is_there(self, theirs: Theirs) -> bool:
        found = self._server.sh(f"{theirs.look} && echo there", check=False)
        return found.strip().endswith("there")
