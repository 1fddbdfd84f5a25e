"""What Open vSwitch's database says, as our entries, and what of others stands among them."""

from __future__ import annotations

from typing import Any, Literal

from placewire.agent.contract.entries import (
    BRIDGE_PREFIX,
    OWNER_KEY,
    DatapathType,
    Queue,
    Shaper,
    UnusedRow,
)
from placewire.agent.contract.state import ForeignEntry
from placewire.agent.drivers.ovsdb_connection import Database
from placewire.agent.reconcile.foreign import PORTS, SHAPERS

NIC_KEY = "placewire-nic"
QUEUE_KEY = "placewire-queue"
PURPOSE_KEY = "placewire-purpose"


class SwitchView:
    """Read once: the rows as they were when the connection was opened."""

    def __init__(self, database: Database) -> None:
        self._rows = database.rows
        self.bridge_of_port = {
            port.name: bridge.name for bridge in self._rows("Bridge") for port in bridge.ports
        }
        self.internal_interfaces = {
            row.name for row in self._rows("Interface") if row.type == "internal"
        }

    def bridges(self) -> list[tuple[str, str, DatapathType]]:
        """(name, NIC or "" where it is no port, datapath) of ours."""
        found = []
        for row in self._rows("Bridge"):
            if OWNER_KEY in row.external_ids:
                nic = row.external_ids.get(NIC_KEY, "")
                datapath: DatapathType = "netdev" if row.datapath_type == "netdev" else "system"
                is_port = self.bridge_of_port.get(nic) == row.name
                found.append((row.name, nic if is_port else "", datapath))
        return sorted(found)

    def foreign_bridges(self) -> list[ForeignEntry]:
        return [
            ForeignEntry(collection="bridges", key=row.name, text=f"Open vSwitch bridge {row.name}")
            for row in self._rows("Bridge")
            if OWNER_KEY not in row.external_ids and row.name.startswith(BRIDGE_PREFIX)
        ]

    def foreign_on_ours(self) -> list[ForeignEntry]:
        """Ports of others on our bridges, and QoS of others on our ports."""
        ours = [row for row in self._rows("Bridge") if OWNER_KEY in row.external_ids]
        ports = [(row.name, port) for row in ours for port in row.ports]
        return [
            *(
                ForeignEntry(collection=PORTS, key=bridge, text=f"port {port.name}")
                for bridge, port in ports
                if OWNER_KEY not in port.external_ids
            ),
            *(
                ForeignEntry(
                    collection=SHAPERS, key=port.name, text=f"{qos.type} QoS of port {port.name}"
                )
                for _, port in ports
                if OWNER_KEY in port.external_ids
                for qos in port.qos
                if OWNER_KEY not in qos.external_ids
            ),
        ]

    def shapers_and_queues(self) -> tuple[list[Shaper], list[Queue]]:
        """Those in use by a port."""
        shapers, queues = [], []
        for port in self._rows("Port"):
            for qos in port.qos:
                if OWNER_KEY not in qos.external_ids:
                    continue
                shapers.append(Shaper(nic=port.name, max_bits_per_second=_rate(qos, "max-rate")))
                for queue_id, row in qos.queues.items():
                    queues.append(_queue(port.name, queue_id, row))
        return sorted(shapers, key=lambda s: s.nic), sorted(queues, key=_queue_order)

    def unused_rows(self) -> list[UnusedRow]:
        """Of ours. A queue that a QoS of others has is in use, whoever uses that."""
        used = {qos.uuid for port in self._rows("Port") for qos in port.qos}
        kept = [
            qos
            for qos in self._rows("QoS")
            if qos.uuid in used or OWNER_KEY not in qos.external_ids
        ]
        used |= {queue.uuid for qos in kept for queue in qos.queues.values()}
        tables: tuple[Literal["QoS", "Queue"], ...] = ("QoS", "Queue")
        return [
            UnusedRow(table=table, uuid=str(row.uuid))
            for table in tables
            for row in self._rows(table)
            if OWNER_KEY in row.external_ids and row.uuid not in used
        ]


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
    text = row.other_config.get(key, "0")
    return int(text) if text.isdigit() else 0


def _queue_order(queue: Queue) -> tuple[str, int]:
    return queue.nic, queue.queue_id
