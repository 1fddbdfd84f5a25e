"""Writes bridges, shapers and queues to Open vSwitch's database.

The database never drops QoS and Queue rows by itself: we mark ours, and delete them. A mark's value
is the plan's name; further keys beside it say what a row is for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from placewire.agent.contract.entries import OWNER_KEY, Bridge, Queue, Shaper
from placewire.agent.contract.state import TakenOver
from placewire.agent.drivers.ovsdb_connection import Database, connected
from placewire.agent.drivers.switch_view import (
    HELD_KEY,
    NIC_KEY,
    PURPOSE_KEY,
    QOS_TYPE,
    QUEUE_KEY,
    SwitchView,
    is_own_port,
    is_own_qos,
    is_own_queue,
)
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.steps import EntryStep

# A type of an interface that Open vSwitch does not have.
_CLOSED_TYPE = "placewire-closed"


class MarkedBridge(NamedTuple):
    """mac: the bridge's MAC address. held: what its mark says that its NIC held; None leaves the
    mark as it is."""

    bridge: Bridge
    mac: str
    held: TakenOver | None


def add_bridges(remote: str, wanted: Sequence[MarkedBridge], plan_name: str) -> None:
    """Adds bridges in one transaction, each with its NIC as its port; a bridge of ours that exists
    is completed. Raises EffectError."""
    with connected(remote) as database:

        def change(transaction: Any) -> None:
            for bridge, mac, held in wanted:
                marks = {OWNER_KEY: plan_name, NIC_KEY: bridge.nic}
                if held is not None:
                    marks[HELD_KEY] = held.model_dump_json()
                _write_bridge(database, transaction, bridge, mac, marks)

        names = ", ".join(bridge.name for bridge, _, _ in wanted)
        database.transact(change, f"bridges {names}")
        there = {name: nic for name, nic, _ in SwitchView(database).bridges()}
        for bridge, _, _ in wanted:
            if there.get(bridge.name) != bridge.nic:
                raise EffectError(f"bridge {bridge.name} was written but is not in the database")


def remove_bridges(remote: str, names: Sequence[str]) -> None:
    """Removes those of these bridges that are ours. Raises EffectError where a bridge has a foreign
    port, or a port of ours a foreign QoS, which would go with the bridge."""
    with connected(remote) as database:
        named = (row for row in database.rows("Bridge") if row.name in names)
        rows = [row for row in named if OWNER_KEY in row.external_ids]
        if not rows:
            return

        def change(_: Any) -> None:
            for row in rows:
                row.verify("ports")
                _require_ports_ours(row)
                database.switch.delvalue("bridges", row)
                row.delete()

        database.transact(change, f"remove bridges {', '.join(names)}")


def _require_ports_ours(bridge: Any) -> None:
    for port in bridge.ports:
        if not is_own_port(bridge, port):
            raise EffectError(f"bridge {bridge.name} has a port {port.name} that is not ours")
        port.verify("qos")
        if any(not is_own_qos(port, qos) for qos in port.qos):
            raise EffectError(f"port {port.name} has a QoS that is not ours")


def change_queues(remote: str, steps: Sequence[EntryStep], plan_name: str) -> None:
    """Changes shapers and queues in one transaction. Raises EffectError."""
    with connected(remote) as database:
        database.transact(
            lambda transaction: _write_queues(database, transaction, steps, plan_name),
            f"{len(steps)} shapers and queues",
        )


def write_classes_again(remote: str) -> None:
    """Makes ovs-vswitchd write all its classes to the kernel, as it does at every change of the
    database. Writing the value that a row has already would be no change."""
    with connected(remote) as database:

        def change(_: Any) -> None:
            database.switch.verify("next_cfg")
            database.switch.next_cfg += 1

        database.transact(change, "write the classes again")


def install_anew(remote: str, nics: Collection[str]) -> None:
    """Makes ovs-vswitchd remove these NICs' HTB and build it again from the rows as they are.

    This takes two transactions: a port whose QoS keeps its type keeps its HTB, even with another
    row (Open vSwitch 3.1). An agent that ends in between leaves an unused QoS to the next change.
    """
    with connected(remote) as database:
        shaped = {
            port.name: qos
            for port in database.rows("Port")
            if port.name in nics and (qos := _own_qos(port)) is not None
        }

        def assign(there: bool) -> None:
            for port in database.rows("Port"):
                if port.name in shaped:
                    port.verify("qos")
                    port.qos = [shaped[port.name]] if there else []

        names = ", ".join(sorted(shaped))
        database.transact(lambda _: assign(False), f"take the queues off {names}")
        database.transact(lambda _: assign(True), f"queues of {names}")


def open_anew(remote: str, nics: Collection[str]) -> None:
    """Makes ovs-vswitchd close these NICs, where they are ports of ours, and open them again.

    It opens a port when that appears, and closes it when that goes or is of a type that it does not
    know. For the latter all rows stay, with what others have written to them: only the type changes
    and changes back. The port keeps its OpenFlow number, which flows of others may name: it is
    asked for while the port is opened. The type is changed back also where ovs-vswitchd does not
    take the first change in. An agent that ends in between leaves a port that is not open, which
    the next one finds. Raises EffectError.
    """
    with connected(remote) as database:
        own = _own_ports(database)
        rows = [
            row
            for port in database.rows("Port")
            if port.name in nics and port.name in own
            for row in port.interfaces
        ]
        former = {row.uuid: "" if row.type == _CLOSED_TYPE else row.type for row in rows}
        numbered = [row for row in rows if not row.ofport_request and row.ofport not in ([], [-1])]

        def close(_: Any) -> None:
            for row in rows:
                row.verify("type")
                row.type = _CLOSED_TYPE
            for row in numbered:
                row.ofport_request = row.ofport

        def open_again(_: Any) -> None:
            for row in rows:
                row.verify("type")
                row.type = former[row.uuid]

        def ask_for_no_number(_: Any) -> None:
            for row in numbered:
                row.ofport_request = []

        names = ", ".join(sorted(row.name for row in rows))
        if rows:
            try:
                database.transact(close, f"close {names}, to open anew")
            finally:
                database.transact(open_again, f"open {names} anew")
            database.transact(ask_for_no_number, f"{names}: keep the numbers")


def remove_unused_rows(remote: str) -> None:
    """Removes the QoS and Queue rows of ours that no port uses now. Raises EffectError."""
    with connected(remote) as database:
        unused = {row.uuid for row in SwitchView(database).unused_rows()}
        if not unused:
            return

        def change(_: Any) -> None:
            for row in (row for table in ("QoS", "Queue") for row in database.rows(table)):
                if str(row.uuid) in unused:
                    row.delete()

        database.transact(change, "unused rows of ours")


def _write_bridge(
    database: Database, transaction: Any, bridge: Bridge, mac: str, marks: dict[str, str]
) -> None:
    row = next((r for r in database.rows("Bridge") if r.name == bridge.name), None)
    if row is not None and OWNER_KEY not in row.external_ids:
        raise EffectError(f"bridge {bridge.name} exists, and is not ours")
    plan_name = marks[OWNER_KEY]
    if row is None:
        row = transaction.insert(database.tables["Bridge"])
        row.name = bridge.name
        row.other_config, row.external_ids = {"hwaddr": mac}, marks
        # A standalone bridge forwards like a learning switch where it has no controller.
        row.fail_mode = "standalone"
        ports = [_new_port(database, transaction, bridge.name, plan_name, internal=True)]
        database.switch.addvalue("bridges", row)
    else:
        # Fails the transaction where somebody adds a port meanwhile, which would be overwritten.
        row.verify("ports")
        ports = list(row.ports)
        _set_keys(row, "other_config", {"hwaddr": mac})
        _set_keys(row, "external_ids", marks)
    if all(port.name != bridge.nic for port in ports):
        ports.append(_new_port(database, transaction, bridge.nic, plan_name, internal=False))
    row.ports = ports
    row.datapath_type = bridge.datapath
    for port in ports:
        if port.name == bridge.name:
            port.interfaces[0].mtu_request = bridge.mtu_bytes
        if port.name in (bridge.name, bridge.nic):  # Somebody may have taken off its mark.
            _set_keys(port, "external_ids", {OWNER_KEY: plan_name})


def _new_port(
    database: Database, transaction: Any, name: str, plan_name: str, *, internal: bool
) -> Any:
    interface = transaction.insert(database.tables["Interface"])
    interface.name = name
    if internal:
        interface.type = "internal"
    port = transaction.insert(database.tables["Port"])
    port.name = name
    port.interfaces = [interface]
    port.external_ids = {OWNER_KEY: plan_name}
    return port


def _write_queues(
    database: Database, transaction: Any, steps: Sequence[EntryStep], plan_name: str
) -> None:
    ports = {port.name: port for port in database.rows("Port")}
    qos_of = {name: _own_qos(port) for name, port in ports.items()}
    own = _own_ports(database)
    tables = database.tables
    for step in steps:
        entry = step.after
        if isinstance(entry, Shaper):
            port = ports.get(entry.nic)
            if port is None or entry.nic not in own:
                raise EffectError(f"NIC {entry.nic} is no port of ours")
            qos = qos_of[entry.nic]
            if qos is None and port.qos:
                raise EffectError(f"NIC {entry.nic} has a QoS that is not ours")
            if qos is None:
                qos = qos_of[entry.nic] = transaction.insert(tables["QoS"])
                qos.queues = {}
                qos.external_ids = {OWNER_KEY: plan_name, NIC_KEY: entry.nic}
                qos.other_config = {"max-rate": str(entry.max_bits_per_second)}
                port.verify("qos")
                port.qos = [qos]
            else:
                _set_keys(qos, "other_config", {"max-rate": str(entry.max_bits_per_second)})
            qos.type = QOS_TYPE
    gone = {s.before.nic for s in steps if s.after is None and isinstance(s.before, Shaper)}
    for nic, qos in qos_of.items():
        changes = {
            s.entry.queue_id: s for s in steps if isinstance(s.entry, Queue) and s.entry.nic == nic
        }
        if qos is None or not (changes or nic in gone):
            continue
        _change_queue_map(transaction, tables, nic, qos, changes, plan_name)
        if nic in gone:
            qos.verify("queues")
            if theirs := [n for n, r in qos.queues.items() if not is_own_queue(nic, n, r)]:
                raise EffectError(f"{nic} queue {theirs[0]} has a row that is not ours")
            ports[nic].qos = []
            qos.delete()


def _change_queue_map(
    transaction: Any,
    tables: Any,
    nic: str,
    qos: Any,
    changes: dict[int, EntryStep],
    plan_name: str,
) -> None:
    queues = dict(qos.queues)
    for queue_id, step in changes.items():
        row = queues.get(queue_id)
        queue = step.after
        if queue is None:
            if row is not None and is_own_queue(nic, queue_id, row):
                del queues[queue_id]
                row.delete()
            continue
        assert isinstance(queue, Queue)
        config = {
            "min-rate": str(queue.min_bits_per_second),
            "max-rate": str(queue.max_bits_per_second),
            # In bits; sets both burst and cburst, whose defaults are too small above 1 Gbit/s.
            "burst": str(queue.burst_bits),
        }
        marks = {
            OWNER_KEY: plan_name,
            NIC_KEY: queue.nic,
            QUEUE_KEY: str(queue_id),
            PURPOSE_KEY: queue.purpose,
        }
        if row is not None and not is_own_queue(nic, queue_id, row):
            raise EffectError(f"{queue.key} has a row that is not ours")
        if row is None:
            row = queues[queue_id] = transaction.insert(tables["Queue"])
            row.other_config, row.external_ids = config, marks
        else:
            _set_keys(row, "other_config", config)
            _set_keys(row, "external_ids", marks)
    qos.queues = queues


def _set_keys(row: Any, column: str, values: dict[str, str]) -> None:
    """Sets keys of an existing row; keys that others put there stay."""
    present = getattr(row, column)
    for key, value in values.items():
        if present.get(key) != value:
            row.setkey(column, key, value)


def _own_ports(database: Database) -> set[str]:
    ours = (row for row in database.rows("Bridge") if OWNER_KEY in row.external_ids)
    return {port.name for row in ours for port in row.ports if is_own_port(row, port)}


def _own_qos(port: Any) -> Any:
    return next((qos for qos in port.qos if is_own_qos(port, qos)), None)
