"""What ovsdb-server tells of our rows, and that it is there again.

A thread of its own, because the IDL waits in its own way; while nothing happens it sleeps.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any

import ovs.poller
from ovs.db import idl

from placewire.agent.contract.entries import BRIDGE_PREFIX, OWNER_KEY
from placewire.agent.drivers.ovsdb_connection import schema
from placewire.agent.reconcile.effects import EffectError

log = logging.getLogger(__name__)

# Only what is ours or can be in our way; no counters, and nothing that every change touches.
COLUMNS = {
    "Bridge": ["name", "ports", "external_ids", "datapath_type", "other_config", "fail_mode"],
    "Port": ["name", "qos", "external_ids"],
    "QoS": ["type", "queues", "other_config", "external_ids"],
    "Queue": ["other_config", "external_ids"],
}
# Until the first connection; later ones are the IDL's own.
CONNECT_PAUSE_SECONDS = 2.0


class DatabaseEvents:
    """notice: called in this object's thread, from `start` to `stop`."""

    def __init__(self, remote: str, notice: Callable[[], None]) -> None:
        self._remote = remote
        self._notice = notice
        self._stopping = threading.Event()
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="ovsdb events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for the thread, which may be connecting."""
        # In this order: once it sees that it is to stop, the thread closes the pipe.
        os.write(self._wake_write, b"x")
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow(self._connect())
            except EffectError:
                self._stopping.wait(CONNECT_PAUSE_SECONDS)
            except Exception:
                log.exception("the database's events are lost; connecting again")
                self._stopping.wait(CONNECT_PAUSE_SECONDS)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _connect(self) -> Any:
        helper = idl.SchemaHelper(schema_json=schema(self._remote))
        for table, columns in COLUMNS.items():
            helper.register_columns(table, columns)
        connection = idl.Idl(self._remote, helper)
        connection.notify = self._row_changed
        return connection

    def _follow(self, connection: Any) -> None:
        try:
            while not self._stopping.is_set():
                connection.run()
                poller = ovs.poller.Poller()
                connection.wait(poller)
                poller.fd_wait(self._wake_read, select.POLLIN)
                poller.block()
        finally:
            connection.close()

    def _row_changed(self, _: str, row: Any, updates: Any = None) -> None:
        """updates: former values of the columns that changed. At the first connection, and after
        ovsdb-server was away, all rows are new."""
        if concerns(row) or (updates is not None and concerns(updates)):
            self._notice()


def concerns(row: Any) -> bool:
    """Of ours, or a bridge where ours would be."""
    marked = OWNER_KEY in (getattr(row, "external_ids", None) or {})
    return marked or str(getattr(row, "name", "")).startswith(BRIDGE_PREFIX)
