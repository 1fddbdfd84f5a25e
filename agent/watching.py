"""Listens to whatever tells of changes to the state in force, and notifies the keeper."""

from __future__ import annotations

import asyncio
import logging

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import DesiredState
from placewire.agent.drivers.database_events import DatabaseEvents
from placewire.agent.drivers.flow_events import FlowsUnwatchedError, follow_flows
from placewire.agent.drivers.kernel_events import KernelEvents
from placewire.agent.keep.keeper import Keeper

log = logging.getLogger(__name__)


class Watching:
    """`follow` is to be called in the loop's thread whenever another state may be in force."""

    def __init__(self, config: AgentConfig, keeper: Keeper) -> None:
        self._config = config
        self._keeper = keeper
        self._followed: tuple[DesiredState | None, frozenset[str]] = (None, frozenset())
        self._kernel = KernelEvents(keeper.notice)
        self._database: DatabaseEvents | None = None
        self._flows: list[asyncio.Task[None]] = []

    def follow(self, desired: DesiredState | None, nics: frozenset[str]) -> None:
        """desired: the state in force. nics: those of it, and those to which something is owed.
        Without both, nothing is listened to. Never raises, so that the lease is looked after in
        any case: the keeper looks now and then without being told."""
        if desired is self._followed[0] and nics == self._followed[1]:
            return
        try:
            self.close()
            self._open(desired, nics)
        except Exception:
            log.exception("not every change of others will be noticed at once")
        finally:
            self._followed = (desired, nics)

    def close(self) -> None:
        self._kernel.close()
        for task in self._flows:
            task.cancel()
        self._flows = []
        if self._database is not None:
            self._database.stop()
            self._database = None
        self._followed = (None, frozenset())

    def _open(self, desired: DesiredState | None, nics: frozenset[str]) -> None:
        bridges = [bridge.name for bridge in desired.bridges] if desired is not None else []
        if desired is not None:
            self._flows = [asyncio.create_task(self._follow_flows(bridge)) for bridge in bridges]
            self._database = DatabaseEvents(self._config.ovsdb_remote, self._keeper.notice)
            self._database.start()
        if bridges or nics:
            self._kernel.open(nics.union(bridges))

    async def _follow_flows(self, bridge: str) -> None:
        try:
            await follow_flows(
                self._config.openvswitch_run_dir,
                bridge,
                self._keeper.notice,
                lambda: self._keeper.notice(switch_restarted=True),
            )
        except FlowsUnwatchedError as error:
            log.error("%s: its flows are only looked at now and then: %s", bridge, error)
