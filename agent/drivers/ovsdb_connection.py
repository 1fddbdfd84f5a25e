"""Connects to ovsdb-server, and makes transactions whose result is not taken on trust.

The IDL logs and drops a value of the wrong type while the commit reports success, and OVSDB accepts
what ovs-vswitchd then does not do: callers read back what they wrote.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import ovs.jsonrpc
import ovs.poller
import ovs.stream
from ovs.db import idl

from placewire.agent.drivers.ovsdb_json import parse_quickly
from placewire.agent.drivers.ovsdb_polling import wait_by_poll
from placewire.agent.drivers.ovsdb_references import References, columns_of, references_of
from placewire.agent.reconcile.effects import EffectError, NoAnswerError

parse_quickly()
wait_by_poll()


class _Uuids:
    """What the IDL takes of the module uuid. Python's uuid1 asks libuuid, which keeps a file open
    for each thread that has ever asked, also when the thread has ended."""

    UUID = uuid.UUID
    uuid1 = staticmethod(uuid.uuid4)
    uuid4 = staticmethod(uuid.uuid4)


idl.uuid = _Uuids

# Only the columns that are used, because Python makes rows of all that comes.
COLUMNS = {
    "Open_vSwitch": ["bridges", "next_cfg", "cur_cfg", "ovs_version", "other_config"],
    "Bridge": [
        "name", "ports", "external_ids", "datapath_type", "other_config", "fail_mode",
    ],
    "Port": ["name", "interfaces", "qos", "external_ids", "tag", "trunks", "vlan_mode"],
    "Interface": ["name", "type", "mtu_request", "ofport", "ofport_request", "error"],
    "QoS": ["type", "queues", "other_config", "external_ids"],
    "Queue": ["other_config", "external_ids"],
}  # fmt: skip
TIMEOUT_SECONDS = 10.0
# How long to wait for a listener: a restart takes less, and a lease that ends must not wait longer.
ABSENCE_SECONDS = 2.0


class Database:
    """One open connection."""

    def __init__(self, connection: Any, references: References) -> None:
        """references: what others may have on a bridge, in this database."""
        self._idl = connection
        self.references = references

    @property
    def tables(self) -> Any:
        """The IDL's tables, which `Transaction.insert` takes."""
        return self._idl.tables

    def rows(self, table: str) -> list[Any]:
        return list(self._idl.tables[table].rows.values())

    @property
    def switch(self) -> Any:
        """The one row of Open_vSwitch."""
        rows = self.rows("Open_vSwitch")
        if not rows:
            raise EffectError("the Open vSwitch database is empty: is ovs-vswitchd running?")
        return rows[0]

    def transact(self, change: Callable[[Any], None], what: str) -> None:
        """Makes one transaction, and returns when ovs-vswitchd has taken it in. Raises EffectError.

        change: writes through rows and `transaction.insert`.
        """
        transaction = idl.Transaction(self._idl)
        transaction.add_comment(f"placewire agent: {what}")
        change(transaction)
        self.switch.increment("next_cfg")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (status := transaction.commit()) == idl.Transaction.INCOMPLETE:
            self._step(deadline, "commit")
        if status == idl.Transaction.UNCHANGED:
            return
        if status != idl.Transaction.SUCCESS:
            reason = transaction.get_error() or idl.Transaction.status_to_string(status)
            raise EffectError(f"Open vSwitch database, {what}: {reason}")
        number, deadline = transaction.get_increment_new_value(), time.monotonic() + TIMEOUT_SECONDS
        while self.switch.cur_cfg < number:
            self._step(deadline, f"{what}: ovs-vswitchd does not take it in")

    def _step(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise NoAnswerError(f"Open vSwitch database: {what}: no answer")
        if not self._idl.run():
            _wait(self._idl)
            self._idl.run()


@contextmanager
def connected(remote: str) -> Iterator[Database]:
    """Raises EffectError where nobody answers; after ABSENCE_SECONDS where nobody listens."""
    _wait_for_listener(remote)
    schema = _schema(remote)
    references = references_of(schema)
    theirs = columns_of(references, schema)
    both = {t: [*COLUMNS.get(t, ()), *theirs.get(t, ())] for t in (*COLUMNS, *theirs)}
    connection = open_idl(remote, both)
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not connection.has_ever_connected():
            if time.monotonic() > deadline:
                raise NoAnswerError(f"{remote}: ovsdb-server sends no data")
            connection.run()
            _wait(connection)
        yield Database(connection, references)
    finally:
        connection.close()


def open_idl(remote: str, columns: Mapping[str, Sequence[str]]) -> Any:
    """An IDL connection that follows these columns of each table. Raises EffectError."""
    helper = idl.SchemaHelper(schema_json=_schema(remote))
    for table, names in columns.items():
        helper.register_columns(table, names)
    return idl.Idl(remote, helper)


def _wait(connection: Any) -> None:
    """Sleeps until the connection has something to do, 0.1 s at most."""
    poller = ovs.poller.Poller()
    connection.wait(poller)
    poller.timer_wait(100)
    poller.block()


def _wait_for_listener(remote: str) -> None:
    """The IDL itself does not tell a socket that refuses from a slow server."""
    deadline = time.monotonic() + ABSENCE_SECONDS
    while True:
        try:
            _open_stream(remote).close()
            return
        except EffectError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _open_stream(remote: str) -> Any:
    """Raises EffectError where nobody listens."""
    error, stream = ovs.stream.Stream.open_block(
        ovs.stream.Stream.open(remote), timeout=int(TIMEOUT_SECONDS * 1000)
    )
    if error:
        raise EffectError(
            f"{remote}: cannot connect to ovsdb-server ({os.strerror(error)}); is it running, and "
            "may this user write its socket?"
        )
    return stream


def make_durable(remote: str) -> None:
    """Returns once everything that ovsdb-server has answered is on its disk. Raises EffectError.

    ovsdb-server answers when a transaction is in its log, and syncs that only for one which asks
    for it, as the IDL never does. The log is one file that grows: its sync covers all that was
    written before. Only a transaction that changes something is written and synced, so this one
    moves `next_cfg`, as every transaction of `ovs-vsctl` does.
    """
    _wait_for_listener(remote)
    change = {
        "op": "mutate",
        "table": "Open_vSwitch",
        "where": [],
        "mutations": [["next_cfg", "+=", 1]],
    }
    comment = {"op": "comment", "comment": "placewire agent: all before this is on disk"}
    operations = [change, comment, {"op": "commit", "durable": True}]
    results = _ask(remote, "transact", ["Open_vSwitch", *operations], "does not sync its log")
    # ovsdb-server adds one more result where the commit itself fails.
    for result in results:
        if result is not None and "error" in result:
            said = result.get("details") or result["error"]
            raise EffectError(f"{remote}: ovsdb-server does not sync its log: {said}")


@cache
def _schema(remote: str) -> Any:
    """Asked for once: columns that we use do not go away while a switch is upgraded."""
    return _ask(remote, "get_schema", ["Open_vSwitch"], "does not say its schema")


def _ask(remote: str, method: str, parameters: Sequence[Any], failure: str) -> Any:
    """The result of one request on a connection of its own. failure: what ovsdb-server does where
    there is none. Raises EffectError."""
    rpc = ovs.jsonrpc.Connection(_open_stream(remote))
    try:
        request = ovs.jsonrpc.Message.create_request(method, list(parameters))
        reply: Any = None
        error = rpc.send(request)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not error and (reply is None or reply.id != request.id):
            if time.monotonic() > deadline:
                raise NoAnswerError(f"{remote}: ovsdb-server {failure}")
            rpc.run()
            error, reply = rpc.recv()
            if error == errno.EAGAIN:
                error = 0
                poller = ovs.poller.Poller()
                rpc.wait(poller)
                rpc.recv_wait(poller)
                poller.timer_wait(100)
                poller.block()
        if error or reply.error:
            raise EffectError(f"{remote}: ovsdb-server {failure}: {error or reply.error}")
        return reply.result
    finally:
        rpc.close()
