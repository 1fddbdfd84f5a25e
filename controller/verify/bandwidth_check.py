"""Measures with iperf3, all transfers at once, whether the network delivers what was promised.

`judge` is pure and gives the verdict; the rest asks the agents.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

from placewire.agent.contract.measurement import LinkMeasurement, Transfer, TransferResult
from placewire.agent.contract.messages import (
    Listening,
    RunTransfers,
    StartServers,
    StopServers,
    TransferResults,
)
from placewire.controller.agents.agents import Agents, require_asked_for
from placewire.controller.compile.transfers import Promise
from placewire.controller.compile.units import wire_rate
from placewire.controller.errors import PlacewireError, VerificationFailed
from placewire.controller.plan.plan import Plan
from placewire.optimizer.cluster_plan.payload import HEADER_BYTES

# iperf3 leaves out this time: slow start and filling queues must pass before a rate means anything.
_SETTLE_SECONDS = 1.0
_START_DELAY_SECONDS = 1.0
# Allowed beyond the tolerance: a receiver counts whole frames, and may miss one at each end. For a
# slow queue that is much (10 % of 0.48 Mbit/s at MTU 9000); at most half of a promise is allowed.
_MISSED_FRAMES = 2
# The part of the measured time in which all transfers must run together.
_TOGETHER_FRACTION = 0.8
_LOOK_FOR_TRAFFIC = "look for other traffic on that NIC, or raise network.verify.tolerance"
_MEASURE_FIRST = (
    "what could not be measured is not known: see first to what hindered it; --no-measurement goes "
    "without"
)


async def measure(
    agents: Agents, plan: Plan, promised: Sequence[Promise]
) -> tuple[LinkMeasurement, ...]:
    """Measures all promises at the same time. Returns one measurement for each. Raises
    AgentProblem where a server does not answer, or tells rates of others."""
    if not promised:
        return ()
    seconds = plan.network.verify_settings.seconds
    timeout_seconds = seconds + _SETTLE_SECONDS + 20
    arriving, leaving = defaultdict(list), defaultdict(list)
    for promise in promised:
        arriving[promise.transfer.destination].append(promise.transfer)
        leaving[promise.transfer.source].append(promise.transfer)
    servers = tuple(dict.fromkeys([*arriving, *leaving]))
    try:
        clocks = await asyncio.gather(
            *(_listen(agents, server, arriving[server], timeout_seconds) for server in servers)
        )
        ahead_seconds = dict(zip(servers, clocks, strict=True))
        start_unix = time.time() + _START_DELAY_SECONDS
        answers = await agents.ask_all(
            {
                server: RunTransfers(
                    transfers=tuple(some),
                    seconds=seconds,
                    start_unix=start_unix + ahead_seconds[server],
                )
                for server, some in leaving.items()
            },
            TransferResults,
            timeout_seconds=timeout_seconds,
        )
    finally:
        # iperf3 servers also end by themselves, and a server that is gone is reported elsewhere.
        with suppress(PlacewireError):
            await agents.ask_all({s: StopServers() for s in servers}, Listening, timeout_seconds=5)
    for server, answer in answers.items():
        asked = map(_of, leaving[server])
        require_asked_for(server, map(_of, answer.results), asked, "a measurement of")
    results = [result for answer in answers.values() for result in answer.results]
    return judge(plan, promised, results, ahead_seconds)


def _of(one: Transfer | TransferResult) -> tuple[str, str, str]:
    return one.source, one.destination, one.rail


async def _listen(
    agents: Agents, server: str, arriving: Sequence[Transfer], timeout_seconds: float
) -> float:
    """Starts a server's iperf3 servers. Returns by how many seconds its clock is ahead of ours."""
    request = StartServers(transfers=tuple(arriving), seconds=timeout_seconds)
    answer = await agents.ask(server, request, Listening, timeout_seconds=10)
    return answer.clock_unix - time.time()


def judge(
    plan: Plan,
    promised: Sequence[Promise],
    results: Sequence[TransferResult],
    ahead_seconds: Mapping[str, float],
) -> tuple[LinkMeasurement, ...]:
    """Compares promised with measured payload rates, within the plan's tolerance.

    A rate below its promise breaks that promise; a rate above what is allowed breaks another's.
    Rates that were not measured at the same time prove nothing: then all have an error.
    ahead_seconds: how far each server's clock is ahead of ours.
    """
    nics = {(s.name, n.rail): n for s in plan.cluster.servers for n in s.nics}
    found = {(r.source, r.destination, r.rail): r for r in results}
    settings = plan.network.verify_settings
    tolerance, seconds = settings.tolerance, settings.seconds
    together, apart = _seconds_together(results, ahead_seconds), None
    if together < _TOGETHER_FRACTION * seconds:
        apart = f"all transfers ran together for {max(together, 0):.1f} of {seconds:g} s only"
    measurements = []
    for promise in promised:
        t = promise.transfer
        nic = nics[t.source, t.rail]
        result = found.get((t.source, t.destination, t.rail))
        measured = result.measured_bits_per_second if result else 0.0
        error = (result.error if result else "no result came back") or apart
        least, most = t.promised_bits_per_second, promise.at_most_bits_per_second
        missed = min(_MISSED_FRAMES * 8 * (nic.mtu_bytes - HEADER_BYTES) / seconds, least / 2)
        measurements.append(
            LinkMeasurement(
                source=t.source,
                destination=t.destination,
                rail=t.rail,
                nic=nic.name,
                queue_id=promise.queue_id,
                promised_bits_per_second=least,
                at_most_bits_per_second=most,
                wire_bits_per_second=wire_rate(least, nic.mtu_bytes),
                measured_bits_per_second=measured,
                within_tolerance=error is None
                and least * (1 - tolerance) - missed <= measured <= most * (1 + tolerance) + missed,
                error=error,
            )
        )
    return tuple(measurements)


def require_delivered(
    links: tuple[LinkMeasurement, ...],
    *,
    now: str = "every server was put back on its former state",
) -> None:
    """Raises VerificationFailed, with all measurements, where a promise is broken; it names the
    worst alone. now: what servers have by then."""
    late = [link for link in links if not link.within_tolerance]
    if late:
        worst = min(late, key=lambda m: m.measured_bits_per_second / m.promised_bits_per_second)
        raise VerificationFailed(
            f"{len(late)} of {len(links)} promised rates were not delivered; the worst got "
            f"{worst.measured_bits_per_second / 1e6:.1f} of "
            f"{worst.promised_bits_per_second / 1e6:.1f} Mbit/s"
            + (f" ({worst.error})" if worst.error else ""),
            where=f"{worst.source} {worst.nic} queue {worst.queue_id} to {worst.destination}",
            remedy=f"{now}; {_LOOK_FOR_TRAFFIC if worst.error is None else _MEASURE_FIRST}",
            links=links,
        )


def _seconds_together(
    results: Sequence[TransferResult], ahead_seconds: Mapping[str, float]
) -> float:
    """Returns how long all transfers that worked ran at the same time; infinite where none did."""
    ran = [r for r in results if r.error is None]
    if not ran:
        return math.inf
    begin = max(r.start_unix - ahead_seconds[r.source] for r in ran)
    return min(r.end_unix - ahead_seconds[r.source] for r in ran) - begin
