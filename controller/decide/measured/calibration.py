"""Measures, before the job, what messages between servers cost through the job's own backend.

One rank per server measures the set-up latency and throughput of every path on the shaped network
(job/calibration). The report shows both beside the values of the prediction. The set-up latency is
kept for the cluster: a plan with `setup_latency: measured` is decided with it from the next time
on, and with an assumed one until then. So is what a message takes of the ranks' processors, for
plans without a `message_time`. The measured rates are not used for decisions, because a
queue carries whatever rate the plan decides on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from placewire.controller.compile.ranks import calibration_specs
from placewire.controller.decide.cached_file import make_cache, written
from placewire.controller.decide.measured.digests import digest
from placewire.controller.decide.measured.optimizer_process import Say
from placewire.controller.errors import PlacewireError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.launch.ranks import run_ranks
from placewire.controller.plan.plan import Plan
from placewire.controller.records.report import CalibratedRow
from placewire.job.contract.specification import Calibrated, RankEvent
from placewire.optimizer.cluster import MessageTime
from placewire.optimizer.cluster_plan.conversion import message_time_of
from placewire.optimizer.graph.json_file import read_json, write_json
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.network.nics import usable_capacity
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.placement import Placement
from placewire.optimizer.quantities import format_seconds

# Used until a set-up latency is measured: what gloo took over the lab's links, rounded up.
ASSUMED_SETUP_SECONDS = 500e-6
# A plan may have no more, and ranks, which tell what their user decides, must not either.
_MOST_SECONDS = 60.0
_VERSION = 1
_MESSAGE_KEYS = ("message_seconds", "message_seconds_per_byte")


def wants_calibration(plan: Plan, cache: Path) -> bool:
    """Whether the plan asks for a calibration, or for a measured set-up latency that is not yet
    known for its cluster."""
    unknown = plan.cluster.setup_latency_seconds is None and kept_setup_seconds(plan, cache) is None
    return plan.network.calibrate or unknown


async def calibrate(
    plan: Plan,
    placement: Placement,
    placement_file: Path,
    launcher: Launcher,
    cache: Path,
    say: Say,
    held_seconds: Callable[[], float],
) -> tuple[CalibratedRow, ...]:
    """Measures every path and keeps the set-up latency. Empty where no two servers share a rail.
    held_seconds: as in run_ranks. Raises JobFailed where a rank fails."""
    specs = calibration_specs(plan, placement, placement_file)
    if not specs:
        say("no two servers share a rail, so there is no path to calibrate")
        return ()
    events: list[RankEvent] = []
    await run_ranks(launcher, specs, events.append, held_seconds=held_seconds)
    rows = calibrated_rows(placement, events)
    message = calibrated_message_time(events)
    left_out = sum(event.left_out for event in events if isinstance(event, Calibrated))
    if left_out:
        say(
            f"{left_out} of {left_out + len(rows)} paths were too slow, or too much disturbed by "
            "other work, to be measured in time"
        )
    if rows:
        seconds = typical_setup_seconds(rows)
        say(f"setting up a message takes {format_seconds(seconds)}, the median of all paths")
        if message is not None:
            say(f"a message takes {message_words(message)} of each of its two processors")
        try:
            keep(plan, rows, cache, message)
        except PlacewireError as problem:  # It is for the next time; the job is ready.
            say(f"that is not kept: {problem}")
    return rows


def calibrated_rows(placement: Placement, events: Sequence[RankEvent]) -> tuple[CalibratedRow, ...]:
    """The measured paths beside what was planned for them, by source, destination and rail."""
    cluster, policy = placement.cluster, SHARINGS[placement.sharing]
    usable = usable_capacity(cluster, policy.kept_fraction(placement.floor))
    promised = policy.rates_in_force(usable, placement.rates)
    server = {one.name: s for s, one in enumerate(cluster.servers)}
    rail = {name: r for r, name in enumerate(cluster.rails)}
    paths = [
        path
        for event in events
        if isinstance(event, Calibrated)
        for path in event.paths
        if {path.source, path.destination} <= server.keys()
    ]
    rows = []
    for path in paths:
        on = [rail[name] for name in path.rails if name in rail]
        rates = promised[server[path.source], server[path.destination], on]
        rows.append(
            CalibratedRow(
                source=path.source,
                destination=path.destination,
                rail="+".join(path.rails),
                planned_setup_seconds=cluster.setup_latency_seconds,
                setup_seconds=path.setup_seconds,
                promised_bits_per_second=float(rates.sum()) or None,
                bits_per_second=path.bits_per_second,
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.source, row.destination, row.rail)))


def calibrated_message_time(events: Sequence[RankEvent]) -> MessageTime | None:
    """Returns the medians over all ranks; None where no rank says it."""
    told = [event for event in events if isinstance(event, Calibrated)]
    each = [e.message_seconds for e in told if e.message_seconds is not None]
    per_byte = [e.message_seconds_per_byte for e in told if e.message_seconds_per_byte is not None]
    if not each or not per_byte:
        return None
    return MessageTime(statistics.median(each), statistics.median(per_byte))


def message_words(message: MessageTime) -> str:
    per_mib = format_seconds(message.seconds_per_byte * 2**20)
    return f"{format_seconds(message.seconds)} and {per_mib} a MiB"


def with_measured(plan: Plan, cache: Path, say: Say) -> Plan:
    """The plan with a number in place of `setup_latency: measured`, and with the message time that
    was measured where it states none."""
    return _with_message_time(_with_setup_latency(plan, cache, say), cache, say)


def _with_message_time(plan: Plan, cache: Path, say: Say) -> Plan:
    own = plan.cluster
    if own.message_seconds is not None and own.message_seconds_per_mib is not None:
        return plan
    each, per_byte = (_kept(plan, cache, key) for key in _MESSAGE_KEYS)
    known, how = None, "assumed; `network.calibrate: true` measures it"
    if each is not None and per_byte is not None and per_byte * 2**20 <= _MOST_SECONDS:
        known, how = MessageTime(each, per_byte), "as measured on this cluster"
    found = message_time_of(own, known)
    say(f"a message takes {message_words(found)} of each of its two devices, {how}")
    update = {
        "message_seconds": found.seconds, "message_seconds_per_mib": found.seconds_per_byte * 2**20
    }  # fmt: skip
    return plan.model_copy(update={"cluster": own.model_copy(update=update)})


def _with_setup_latency(plan: Plan, cache: Path, say: Say) -> Plan:
    if plan.cluster.setup_latency_seconds is not None:
        return plan
    seconds, how = kept_setup_seconds(plan, cache), "as measured on this cluster"
    if seconds is None:
        how = "assumed; apply measures it before its job, for the next time"
        seconds = ASSUMED_SETUP_SECONDS
    say(f"setup latency: {format_seconds(seconds)}, {how}")
    cluster = plan.cluster.model_copy(update={"setup_latency_seconds": seconds})
    return plan.model_copy(update={"cluster": cluster})


def kept_setup_seconds(plan: Plan, cache: Path) -> float | None:
    """The set-up latency that was last measured on this cluster; None where none was."""
    return _kept(plan, cache, "setup_seconds")


def _kept(plan: Plan, cache: Path, key: str) -> float | None:
    file = _file(plan, cache)
    if not file.is_file():
        return None
    try:
        document = read_json(file)
        seconds = float(document[key]) if document["version"] == _VERSION else None
        return seconds if seconds is not None and 0 <= seconds <= _MOST_SECONDS else None
    except (GraphError, KeyError, TypeError, ValueError, OverflowError):
        return None  # The file is broken: the next calibration replaces it.


def typical_setup_seconds(rows: Sequence[CalibratedRow]) -> float:
    """The median of all paths, because the model has one set-up latency."""
    return statistics.median(row.setup_seconds for row in rows)


def keep(
    plan: Plan, rows: Sequence[CalibratedRow], cache: Path, message: MessageTime | None = None
) -> float:
    """Keeps both, and returns the typical set-up latency. Raises PlacewireError where the cache
    cannot be written, and where no plan could be decided with it."""
    seconds = typical_setup_seconds(rows)
    if seconds > _MOST_SECONDS:
        raise PlacewireError(
            f"a set-up latency of {format_seconds(seconds)} is more than a plan can have",
            remedy="look at what the ranks' servers do beside the job, and calibrate again",
        )
    if (
        message is not None
        and max(message.seconds, message.seconds_per_byte * 2**20) > _MOST_SECONDS
    ):
        raise PlacewireError(
            f"a message time of {message_words(message)} is more than a plan can have",
            remedy="look at what the ranks' servers do beside the job, and calibrate again",
        )
    document = {
        "version": _VERSION,
        "cluster": _cluster(plan),
        "setup_seconds": seconds,
        **dict(zip(_MESSAGE_KEYS, message or (None, None), strict=True)),
        "paths": [row.model_dump() for row in rows],
    }
    make_cache(cache)
    with written(_file(plan, cache)):
        write_json(_file(plan, cache), document)
    return seconds


def _file(plan: Plan, cache: Path) -> Path:
    return cache / f"calibration-{digest(_cluster(plan))}.json"


def _cluster(plan: Plan) -> Any:
    """What a measured set-up latency is valid for: these servers, their NICs and the backend."""
    servers = []
    for server in plan.cluster.servers:
        nics = [[n.rail, n.address, n.rate_bits_per_second, n.mtu_bytes] for n in server.nics]
        servers.append([server.name, server.management, nics])
    return {"servers": servers, "backend": plan.backend}
