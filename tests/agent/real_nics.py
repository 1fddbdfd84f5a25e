"""A NIC of a real server that goes away, in one of four ways, and comes back.

Where the agent had taken what it held, and has it in its ledger, the agent has to give it back, and
nobody does so here. Else the distribution's network service does, as on any server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any

from placewire.agent.reconcile.lease import Kept
from tests.agent.datapath import DATAPATH
from tests.agent.server_under_test import ServerUnderTest

NIC, RAIL = "nic1", 1
_AWAY = "away1"
_OTHER_MAC = "02:00:00:00:99:01"


class Loss(Enum):
    DELETED = "deleted, and made anew with the same MAC"
    MOVED = "moved out of the namespace"
    RENAMED = "renamed"
    REPLACED = "deleted, and made anew with another MAC"


class Nic:
    def __init__(self, server: ServerUnderTest, kept: Callable[[], Kept]) -> None:
        self._server, self._kept = server, kept
        self._mac = self._shown()["address"]
        self._loss: Loss | None = None
        # Whether the agent has to give back what it held.
        self.is_owed = False
        # Whether another NIC has its name now, and whether that took the place of the first while
        # the agent's state was in force over the name: it may then have all of it, or nothing.
        self.is_replaced = False
        self.may_be_adopted = False

    @property
    def is_away(self) -> bool:
        return self._loss is not None

    def take_away(self, loss: Loss) -> None:
        taken = any(taken.nic == NIC for taken in self._kept().ledger.nics)
        before = taken and not self.addresses()
        if loss is Loss.MOVED:
            self._server.sh(f"ip link set {NIC} netns {self._server.peer} name {_AWAY}")
        elif loss is Loss.RENAMED:
            self._rename(NIC, _AWAY)
        else:
            self._server.sh(f"ip link del {NIC}")
        self._loss = loss
        self.is_owed = before

    def bring_back(self) -> None:
        loss, self._loss = self._loss, None
        if loss is None:
            return
        if loss is Loss.MOVED:
            self._server.sh(
                f"ip link set {_AWAY} netns {self._server.namespace} name {NIC}", peer=True
            )
        elif loss is Loss.RENAMED:
            self._rename(_AWAY, NIC)
        else:
            self.is_replaced = loss is Loss.REPLACED
            self.may_be_adopted = any(taken.nic == NIC for taken in self._kept().ledger.nics)
            self._make(_OTHER_MAC if self.is_replaced else self._mac)
        if not self.is_owed and loss is not Loss.RENAMED:
            self._configure()

    def is_in_ledger(self) -> bool:
        """Whether it is written down what the NIC held, or that it is owed that."""
        ledger = self._kept().ledger
        return any(taken.nic == NIC for taken in (*ledger.nics, *ledger.owed))

    def addresses(self) -> list[str]:
        """IPv4 addresses of the NIC that has the name now."""
        found = self._shown()["addr_info"]
        return [f"{a['local']}/{a['prefixlen']}" for a in found if a["family"] == "inet"]

    def _rename(self, former: str, name: str) -> None:
        """Kernels before 6.2 rename no link that is up."""
        self._server.sh(
            f"ip link set {former} name {name} 2>/dev/null || {{ ip link set {former} down; "
            f"ip link set {former} name {name}; ip link set {name} up; }}"
        )

    def _make(self, mac: str) -> None:
        """Down and bare, as a driver makes it; the cable's other end is as it was."""
        server = self._server
        server.sh(f"ip link add {NIC} address {mac} type veth peer name {NIC} netns {server.peer}")
        if DATAPATH == "netdev":
            for peer in (False, True):
                server.sh(f"ethtool -K {NIC} tx off tso off gso off gro off >/dev/null", peer=peer)
        server.sh(f"ip link set {NIC} up", peer=True)
        for host in (2, 3):
            server.sh(f"ip address add 10.7.{RAIL}.{host}/24 dev {NIC}", peer=True)

    def _configure(self) -> None:
        self._server.sh(
            f"ip link set {NIC} up; ip address replace 10.7.{RAIL}.1/24 "
            f"broadcast 10.7.{RAIL}.255 dev {NIC}"
        )

    def _shown(self) -> Any:
        return json.loads(self._server.sh(f"ip -j address show dev {NIC}"))[0]
