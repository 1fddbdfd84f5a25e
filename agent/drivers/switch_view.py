"""Reads our entries from Open vSwitch's database, and what of others is among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from shlex import quote
from typing import Any, Literal

from pydantic import ValidationError

from placewire.agent.contract.entries import (
    BRIDGE_PREFIX,
    OWNER_KEY,
    DatapathType,
    Queue,
    Shaper,
    UnusedRow,
)
from placewire.agent.contract.state import ForeignEntry, TakenOver
from placewire.agent.drivers.ovsdb_connection import Database
from placewire.agent.drivers.ovsdb_references import refers_to
from placewire.agent.iproute2_names import Names
from placewire.agent.reconcile.foreign_kinds import FEATURES, PORTS, SHAPERS, USERS

NIC_KEY = "placewire-nic"
HELD_KEY = "placewire-held"
QUEUE_KEY = "placewire-queue"
PURPOSE_KEY = "placewire-purpose"
QOS_TYPE = "linux-htb"
# Every number of 18 digits is one that a Queue takes.
_RATE = re.compile(r"[0-9]{1,18}")


class SwitchView:
    """The rows as they were when the connection was opened."""

    def __init__(self, database: Database) -> None:
        self._rows = database.rows
        self._references = database.references
        self.bridge_of_port = {
            port.name: bridge.name for bridge in self._rows("Bridge") for port in bridge.ports
        }
        # A port may have several interfaces (a bond), none of which needs to have its name.
        self.bridge_of_interface = {
            interface.name: bridge.name
            for bridge in self._rows("Bridge")
            for port in bridge.ports
            for interface in port.interfaces
        }
        self.internal_interfaces = {
            row.name for row in self._rows("Interface") if row.type == "internal"
        }

    def bridges(self) -> list[tuple[str, str, DatapathType]]:
        """(name, NIC, datapath) of each bridge of ours; the NIC is "" where it is not its port."""
        found = []
        for row in self._rows("Bridge"):
            if OWNER_KEY in row.external_ids:
                nic = row.external_ids.get(NIC_KEY, "")
                datapath: DatapathType = "netdev" if row.datapath_type == "netdev" else "system"
                is_port = self.bridge_of_port.get(nic) == row.name
                found.append((row.name, nic if is_port else "", datapath))
        return sorted(found)

    def errors(self) -> dict[str, str]:
        """By port that Open vSwitch could not make: why, as the database says it."""
        return {
            row.name: row.error[0] if row.error else "it has no OpenFlow port"
            for row in self._rows("Interface")
            if row.error or row.ofport == [-1]
        }

    def vlan_problems(self) -> list[str]:
        """A sentence for each port of ours that somebody has given VLANs: no other frame passes."""
        ours = {name: nic for name, nic, _ in self.bridges()}
        return [
            f"port {row.name} of {bridge} passes only what belongs to its "
            f"{', '.join(columns)}, which somebody has set (ovs-vsctl clear port {quote(row.name)} "
            f"{' '.join(columns)})"
            for row in self._rows("Port")
            if (bridge := self.bridge_of_port.get(row.name, "")) in ours
            and row.name in (bridge, ours[bridge])
            if (columns := [c for c in ("tag", "trunks", "vlan_mode") if getattr(row, c)])
        ]

    def held(self) -> list[TakenOver]:
        """Returns what the marks of our bridges say that their NICs held. A mark belongs to the
        bridge that it stands on, whichever it names. A mark that somebody spoilt is left out."""
        found, names = [], Names()
        for row in self._rows("Bridge"):
            text = row.external_ids.get(HELD_KEY)
            if OWNER_KEY in row.external_ids and text is not None:
                with suppress(ValidationError):
                    taken = names.in_taken(TakenOver.model_validate_json(text))
                    found.append(taken.model_copy(update={"bridge": row.name}))
        return found

    @property
    def controlled(self) -> frozenset[str]:
        """The bridges to which somebody has given a controller."""
        rows = self._rows("Bridge")
        return frozenset(row.name for row in rows if getattr(row, "controller", None))

    @property
    def offloads(self) -> bool:
        """Whether Open vSwitch offloads flows to hardware, for which it makes disciplines."""
        return any(r.other_config.get("hw-offload") == "true" for r in self._rows("Open_vSwitch"))

    def foreign_bridges(self) -> list[ForeignEntry]:
        return [
            ForeignEntry(
                collection="bridges",
                key=row.name,
                text=f"Open vSwitch bridge {row.name}",
                remedy=f"ovs-vsctl del-br {quote(row.name)}",
            )
            for row in self._rows("Bridge")
            if OWNER_KEY not in row.external_ids and row.name.startswith(BRIDGE_PREFIX)
        ]

    def foreign_on_ours(self) -> list[ForeignEntry]:
        """Ports and features of others on our bridges, QoS of others on our ports, queues of others
        in our QoS, and what of others uses our QoS and queues."""
        ours = [row for row in self._rows("Bridge") if OWNER_KEY in row.external_ids]
        found = [
            ForeignEntry(
                collection=FEATURES,
                key=f"{row.name} {column}",
                text=f"a row in column {column} of bridge {row.name}",
                on=row.name,
                remedy=f"ovs-vsctl clear bridge {quote(row.name)} {column}",
            )
            for row in ours
            # We use none of these columns: what they name is others', and goes with the bridge.
            for column, _ in self._references.features
            if getattr(row, column)
        ]
        # Open vSwitch removes no bridge to which such a row refers.
        found += [
            ForeignEntry(
                collection=FEATURES,
                key=f"{bridge.name} {table} {row.uuid}",
                text=f"row {row.uuid} of table {table}, which refers to bridge {bridge.name}",
                on=bridge.name,
                remedy=f"ovs-vsctl destroy {table} {row.uuid}",
            )
            for table, column in self._references.referring
            for row in self._rows(table)
            for bridge in ours
            if refers_to(getattr(row, column), bridge)
        ]
        for bridge, port, own in ((b.name, p, is_own_port(b, p)) for b in ours for p in b.ports):
            if not own:
                found.append(
                    ForeignEntry(
                        collection=PORTS,
                        key=bridge,
                        text=f"port {port.name}",
                        on=bridge,
                        remedy=f"ovs-vsctl del-port {quote(bridge)} {quote(port.name)}",
                    )
                )
                continue
            for qos in port.qos:
                if is_own_qos(port, qos):
                    found += _foreign_queues(port.name, qos)
                    continue
                found.append(
                    ForeignEntry(
                        collection=SHAPERS,
                        key=port.name,
                        text=f"{qos.type} QoS of port {port.name}",
                        on=port.name,
                        remedy=f"ovs-vsctl clear port {quote(port.name)} qos",
                    )
                )
        return [*found, *self._users()]

    def _users(self) -> Iterator[ForeignEntry]:
        """Rows of others that refer to a QoS or queue of ours, which the database then keeps."""
        own = {qos.uuid: nic for nic, qos in self._own_qos()}
        keys = {
            row.uuid: (qos.uuid, Queue.key_format.format(nic=nic, queue_id=queue_id))
            for nic, qos in self._own_qos()
            for queue_id, row in qos.queues.items()
            if is_own_queue(nic, queue_id, row)
        }
        for port in self._rows("Port"):
            for nic in (own[qos.uuid] for qos in port.qos if qos.uuid in own):
                if port.name != nic:
                    yield ForeignEntry(
                        collection=USERS,
                        key=f"{nic} port {port.name}",
                        text=f"the QoS of port {port.name} (it uses that of {nic})",
                        on=nic,
                        remedy=f"ovs-vsctl clear port {quote(port.name)} qos",
                    )
        for qos in self._rows("QoS") if keys else ():
            for number, row in qos.queues.items():
                own_qos, key = keys.get(row.uuid, (qos.uuid, ""))
                if own_qos != qos.uuid:
                    yield ForeignEntry(
                        collection=USERS,
                        key=f"{key} QoS {qos.uuid} {number}",
                        text=f"row {qos.uuid} of table QoS (its queue {number} is {key})",
                        on=key,
                        remedy=f"ovs-vsctl remove qos {qos.uuid} queues {number}",
                    )

    def shapers_and_queues(self) -> tuple[list[Shaper], list[Queue]]:
        """Those of ours that a port uses."""
        shapers, queues = [], []
        for port, qos in self._own_qos():
            # Somebody may have made another kind of ours.
            rate = _rate(qos, "max-rate") if qos.type == QOS_TYPE else 0
            shapers.append(Shaper(nic=port, max_bits_per_second=rate))
            for queue_id, row in qos.queues.items():
                if is_own_queue(port, queue_id, row):
                    queues.append(_queue(port, queue_id, row))
        queues.sort(key=lambda queue: (queue.nic, queue.queue_id))
        return sorted(shapers, key=lambda shaper: shaper.nic), queues

    def queue_ids(self) -> dict[str, frozenset[int]]:
        """By NIC that has a QoS of ours, the ids of all queues in it, whoever put them there."""
        return {port: frozenset(qos.queues) for port, qos in self._own_qos()}

    def _own_qos(self) -> Iterator[tuple[str, Any]]:
        """(port, QoS) of each QoS of ours that its port uses."""
        for port in self._rows("Port"):
            for qos in port.qos:
                if is_own_qos(port, qos):
                    yield port.name, qos

    def unused_rows(self) -> list[UnusedRow]:
        """Rows of ours that no port uses. A queue of a foreign QoS counts as used in any case."""
        used = {qos.uuid for port in self._rows("Port") for qos in port.qos}
        for qos in self._rows("QoS"):
            if qos.uuid in used or OWNER_KEY not in qos.external_ids:
                used |= {queue.uuid for queue in qos.queues.values()}
        tables: tuple[Literal["QoS", "Queue"], ...] = ("QoS", "Queue")
        return [
            UnusedRow(table=table, uuid=str(row.uuid))
            for table in tables
            for row in self._rows(table)
            if OWNER_KEY in row.external_ids and row.uuid not in used
        ]


def is_own_port(bridge: Any, port: Any) -> bool:
    """Whether we made this port of a bridge of ours. The bridge's own and its NIC's are ours though
    somebody took off their mark: without these, no bridge is what we made."""
    own = (bridge.name, bridge.external_ids.get(NIC_KEY))
    return OWNER_KEY in port.external_ids or port.name in own


def is_own_qos(port: Any, qos: Any) -> bool:
    """Whether it is the QoS that we made for this port. Others may have a port of theirs use it."""
    return OWNER_KEY in qos.external_ids and qos.external_ids.get(NIC_KEY) in (None, port.name)


def is_own_queue(nic: str, queue_id: int, row: Any) -> bool:
    """Whether it is the row that we made for this queue. Others may have another QoS, or another
    queue of ours, refer to it."""
    marks = row.external_ids
    place = (marks.get(NIC_KEY, nic), marks.get(QUEUE_KEY, str(queue_id)))
    return OWNER_KEY in marks and place == (nic, str(queue_id))


def _foreign_queues(nic: str, qos: Any) -> Iterator[ForeignEntry]:
    for queue_id, row in qos.queues.items():
        if not is_own_queue(nic, queue_id, row):
            key = Queue.key_format.format(nic=nic, queue_id=queue_id)
            yield ForeignEntry(
                collection="queues",
                key=key,
                text=f"row {row.uuid} of table Queue, as queue {queue_id} of {nic}",
                on=key,
                remedy=f"ovs-vsctl remove qos {qos.uuid} queues {queue_id}",
            )


def _queue(nic: str, queue_id: int, row: Any) -> Queue:
    return Queue(
        nic=nic,
        queue_id=queue_id,
        min_bits_per_second=_rate(row, "min-rate"),
        max_bits_per_second=_rate(row, "max-rate"),
        burst_bits=_rate(row, "burst"),
        purpose=row.external_ids.get(PURPOSE_KEY, ""),
    )


def _rate(row: Any, key: str) -> int:
    """0 for what is no rate that we write: others can write any text there, which is drift."""
    text = row.other_config.get(key, "0")
    return int(text) if _RATE.fullmatch(text) else 0
