"""Notifies when ovsdb-server tells of a change to our rows, or is back after an absence.

This takes a thread, because the IDL waits in its own way; it sleeps while nothing happens.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Any

import ovs.poller

from placewire.agent.contract.entries import BRIDGE_PREFIX, OWNER_KEY
from placewire.agent.drivers.ovsdb_connection import open_idl
from placewire.agent.reconcile.effects import EffectError

log = logging.getLogger(__name__)

# Columns of what is ours or can be in our way: no counters, and none that every change touches.
COLUMNS = {
    "Bridge": ["name", "ports", "external_ids", "datapath_type", "other_config", "fail_mode"],
    "Port": ["name", "qos", "external_ids"],
    "QoS": ["type", "queues", "other_config", "external_ids"],
    "Queue": ["other_config", "external_ids"],
}
# Between attempts at the first connection; the IDL makes later ones by itself.
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
        # In this order, because the thread closes the pipe once it sees that it is to stop.
        os.write(self._wake_write, b"x")
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except EffectError:
                self._stopping.wait(CONNECT_PAUSE_SECONDS)
            except Exception:
                log.exception("the connection to ovsdb-server failed; connecting again")
                self._stopping.wait(CONNECT_PAUSE_SECONDS)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _follow(self) -> None:
        """Runs until `stop`. Raises EffectError where it cannot connect."""
        connection = open_idl(self._remote, COLUMNS)
        connection.notify = self._row_changed
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
        """updates: former values of the columns that changed. All rows count as new at the first
        connection, and after ovsdb-server was away."""
        if concerns(row) or (updates is not None and concerns(updates)):
            self._notice()


def concerns(row: Any) -> bool:
    """Whether the row is ours, or has a name that only our bridges should have."""
    marked = OWNER_KEY in (getattr(row, "external_ids", None) or {})
    return marked or str(getattr(row, "name", "")).startswith(BRIDGE_PREFIX)
