"""The daemon: undoes what must be undone, then keeps the lease and the link to the controller.

It ends on SIGTERM or SIGINT, and leaves the network as it is, because the lease is on disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path

from placewire.agent.connection.controller_connection import ControllerConnection
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.state import ApplyReport, Refusal
from placewire.agent.doctor.doctor import diagnose
from placewire.agent.drivers.neighbours import find_neighbours
from placewire.agent.drivers.server import Server
from placewire.agent.keep.keeper import Keeper
from placewire.agent.measure.measuring import Iperf3Measuring
from placewire.agent.metrics.serving import serve_metrics
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import RETRY_SECONDS
from placewire.agent.reconcile.protected import protected_names
from placewire.agent.service import Service
from placewire.agent.store import take_lock
from placewire.agent.watching import Watching
from placewire.agent.wiring import (
    build_keeper,
    collector,
    unknown_protected,
    way_towards,
)
from placewire.descriptors import raised_limit

log = logging.getLogger(__name__)

# The lease is looked at this often at least, whatever else happens.
LONGEST_PAUSE_SECONDS = 1.0
SHORTEST_PAUSE_SECONDS = 0.05
# A measurement has two pipes to each iperf3, and from Python 3.12 on one descriptor more: some
# 1,500 on each of 64 servers with four NICs, where the usual limit is 1,024.
DESCRIPTORS = 65_536


def run(config: AgentConfig) -> int:
    """Raises AlreadyRunningError, StoreError, EffectError or OSError where it cannot start."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    raised_limit(DESCRIPTORS)
    with take_lock(Path(config.state_dir)):
        server = Server(config)
        # Beside the lease, which waits for no driver.
        server.devices.ask()
        keeper = build_keeper(config, server)
        try:
            if (report := keeper.resume()) is not None:
                _log(report)
        except Exception:
            log.exception("the state on disk could not be resumed; trying again")
        _log_problems(keeper)
        _log_unknown_protected(config)
        measuring = Iperf3Measuring()
        instance = uuid.uuid4().hex
        connection = ControllerConnection(
            config,
            Service(config.server, keeper, measuring, lambda: diagnose(config), find_neighbours),
            lambda: _hello(config, server, keeper, instance),
        )
        asyncio.run(_serve(config, server, connection, keeper, measuring))
    return 0


def _hello(config: AgentConfig, server: Server, keeper: Keeper, instance: str) -> Hello:
    way, capabilities = way_towards(config.controller_url), server.capabilities()
    return Hello(
        server=config.server,
        agent_pid=os.getpid(),
        instance=instance,
        capabilities=capabilities,
        lease=keeper.lease,
        management=min(way.addresses, default=None),
        management_interfaces=None if way.unknown_to else tuple(sorted(way.interfaces)),
        protected=tuple(sorted(protected_names(config.protected, capabilities.nics))),
    )


async def _serve(
    config: AgentConfig,
    server: Server,
    connection: ControllerConnection,
    keeper: Keeper,
    measuring: Iperf3Measuring,
) -> None:
    watching = Watching(config, keeper)
    metrics = await serve_metrics(config, collector(config, server, keeper))
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)

    def greet_again() -> None:
        with suppress(RuntimeError):  # The daemon ends: its loop is closed.
            loop.call_soon_threadsafe(connection.greet_again)

    server.devices.follow(greet_again)
    tasks = [
        asyncio.create_task(connection.run(), name="connection"),
        asyncio.create_task(_keep_lease(keeper, watching), name="lease"),
        asyncio.create_task(ending.wait(), name="signal"),
    ]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    watching.close()
    await metrics.close()
    await measuring.close()
    for task in done:
        task.result()


async def _keep_lease(keeper: Keeper, watching: Watching) -> None:
    """Does what is due, for ever. Wakes at least every second, as the lease may have been shortened
    meanwhile. No error ends this, because it brings the baseline back. Logs refusals only once."""
    logged: tuple[Refusal, ...] = ()
    while True:
        try:
            watching.follow(keeper.desired, keeper.concerned_nics)
            due = keeper.seconds_until_due()
            pause = LONGEST_PAUSE_SECONDS if due is None else min(due, LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(max(pause, SHORTEST_PAUSE_SECONDS))
            await asyncio.to_thread(keeper.save_again)
            if due is not None and due <= pause:
                report = await asyncio.to_thread(keeper.tick)
                if report is not None:
                    if report.changes or report.refusals != logged:
                        _log(report)
                    logged = report.refusals
        except Exception:
            log.exception("the lease could not be looked after; trying again")
            await asyncio.sleep(RETRY_SECONDS)


def _log_problems(keeper: Keeper) -> None:
    try:
        problems = keeper.observe().state.problems
    except EffectError as error:
        problems = (str(error),)
    for problem in (*problems, *keeper.lease.owed):
        log.error("%s", problem)


def _log_unknown_protected(config: AgentConfig) -> None:
    """Logs names that protect nothing: they may be misspelt."""
    with suppress(EffectError):
        for name in unknown_protected(config):
            log.error(
                "`protected` in the agent's configuration names %r, which no interface of this "
                "server has: correct the name (ip link), if it is wrong", name,
            )  # fmt: skip


def _log(report: ApplyReport) -> None:
    log.info(
        "generation %d: %d changes in %.2f s", report.generation, len(report.changes),
        report.wall_seconds,
    )  # fmt: skip
    for refusal in report.refusals:
        log.error("%s", refusal.sentence)
