"""Refusals about shapers, queues, and what steers traffic into queues."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from placewire.agent.contract.capabilities import CLASSFUL_QDISC, CLASSIFIER, TrafficControl
from placewire.agent.contract.entries import (
    CLASSIFIER_PREFERENCES,
    DEFAULT_QUEUE,
    FLOW_PRIORITY,
    LAST_QUEUE,
    LEAST_CLASS_BITS_PER_SECOND,
    Queue,
    Shaper,
)
from placewire.agent.contract.state import DesiredState, ObservedState, Refusal, refuse
from placewire.agent.reconcile.refusals_switch import (
    COUNTS_ALL_RATES,
    LARGEST_32_BIT_RATE,
    shown,
)

# The rounded rates of many queues may add up to a little more than the whole.
ROUNDING = 1e-4
MEGABIT = 1_000_000


def queue_refusals(
    wanted: DesiredState, open_vswitch_version: tuple[int, ...]
) -> Iterator[Refusal]:
    bridged = {bridge.nic for bridge in wanted.bridges}
    shapers = {shaper.nic: shaper for shaper in wanted.shapers}
    for shaper in wanted.shapers:
        if shaper.nic not in bridged:
            yield refuse(f"shaper of {shaper.nic}", "its NIC is in no bridge", "add the bridge")
        yield from _shaper(shaper, [q for q in wanted.queues if q.nic == shaper.nic])
    for queue in wanted.queues:
        yield from _queue(queue, shapers.get(queue.nic))
    if open_vswitch_version < COUNTS_ALL_RATES:
        version = shown(open_vswitch_version)
        rated: tuple[Shaper | Queue, ...] = (*wanted.shapers, *wanted.queues)
        for entry in rated:
            if entry.max_bits_per_second > LARGEST_32_BIT_RATE:
                yield refuse(
                    entry.key,
                    f"{entry.max_bits_per_second} bit/s is more than Open vSwitch {version} can "
                    "count",
                    "install Open vSwitch 3.2 or newer, or plan at most 34 Gbit/s per NIC",
                )


def kernel_refusals(wanted: DesiredState, kernel: TrafficControl) -> Iterator[Refusal]:
    """Refuses what needs a kind that the kernel lacks: Open vSwitch accepts it in silence."""
    if kernel.lacks(CLASSFUL_QDISC):
        for shaper in wanted.shapers:
            yield refuse(
                f"shaper of {shaper.nic}", "this kernel has no HTB", "load or build sch_htb"
            )
    if kernel.lacks(CLASSIFIER):
        for classifier in wanted.classifiers:
            yield refuse(
                f"classifier {classifier.key}",
                "this kernel has no u32 classifier, and the userspace datapath ignores set_queue",
                "load or build cls_u32, or use the kernel datapath (modprobe openvswitch)",
            )


def speed_refusals(wanted: DesiredState, observed: ObservedState) -> Iterator[Refusal]:
    """Refuses rates above the speed that a NIC states."""
    speed = {nic.name: nic.speed_bits_per_second for nic in observed.nics}
    for shaper in wanted.shapers:
        limit, planned = speed.get(shaper.nic), shaper.max_bits_per_second
        if limit and planned > limit:
            yield refuse(
                f"NIC {shaper.nic}",
                f"runs at {limit / MEGABIT:g} Mbit/s, less than the {planned / MEGABIT:g} Mbit/s "
                "that are planned on it",
                f"look at its cable and its switch port (`ethtool {quote(shaper.nic)}`), or plan "
                "it with its real rate",
            )


def _shaper(shaper: Shaper, queues: list[Queue]) -> Iterator[Refusal]:
    where = f"shaper of {shaper.nic}"
    if shaper.max_bits_per_second <= 0:
        yield refuse(where, "its rate is not positive", "give the NIC's rate")
    if not any(queue.queue_id == DEFAULT_QUEUE for queue in queues):
        # Open vSwitch would give 12 Kbit/s to everything that no queue claims, SSH among it.
        yield refuse(where, "queue 0 is not defined", "define queue 0 for the rest")
    promised = sum(max(q.min_bits_per_second, LEAST_CLASS_BITS_PER_SECOND) for q in queues)
    if promised > shaper.max_bits_per_second * (1 + ROUNDING):
        yield refuse(
            where,
            f"its queues' minimums add up to {promised} of {shaper.max_bits_per_second} bit/s, at "
            f"least {LEAST_CLASS_BITS_PER_SECOND} each, as Open vSwitch has them",
            "promise less, or to fewer servers",
        )


def _queue(queue: Queue, shaper: Shaper | None) -> Iterator[Refusal]:
    where, least, most = queue.key, queue.min_bits_per_second, queue.max_bits_per_second
    if not 0 <= queue.queue_id <= LAST_QUEUE:
        yield refuse(where, f"its id is outside 0..{LAST_QUEUE}", "number queues from 0")
    if not 0 < least <= most:
        yield refuse(
            where,
            f"min {least} and max {most} bit/s: not 0 < min <= max",
            "raise max or lower min",
        )
    if queue.burst_bits <= 0:
        yield refuse(where, "has no burst", "give one of at least a few frames")
    if shaper is None:
        yield refuse(where, "its NIC has no shaper", "add the shaper")
    elif most > shaper.max_bits_per_second * (1 + ROUNDING):
        yield refuse(
            where,
            f"its max {most} is above its NIC's {shaper.max_bits_per_second} bit/s",
            "lower it",
        )


def steering_refusals(wanted: DesiredState, observed: ObservedState) -> Iterator[Refusal]:
    nic_of = {bridge.name: bridge.nic for bridge in wanted.bridges}
    defined = {(queue.nic, queue.queue_id) for queue in wanted.queues}
    foreign = {(f.collection, f.key): f.text for f in observed.foreign}
    for flow in wanted.flows:
        where = f"flow {flow.key}"
        if (nic_of.get(flow.bridge), flow.queue_id) not in defined:
            yield refuse(where, f"queue {flow.queue_id} is not defined", "define it")
        if (text := foreign.get(("flows", flow.key))) is not None:
            yield refuse(
                where,
                f"a foreign flow has its match and priority {FLOW_PRIORITY}: {text}",
                "remove that flow",
            )
    for classifier in wanted.classifiers:
        where = f"classifier {classifier.key}"
        if (classifier.nic, classifier.queue_id) not in defined:
            yield refuse(where, f"queue {classifier.queue_id} is not defined", "define it")
        if (text := foreign.get(("classifiers", classifier.nic))) is not None:
            yield refuse(
                where,
                "a foreign tc filter is in our preferences from "
                f"{CLASSIFIER_PREFERENCES.start}: {text}",
                "give that filter another preference",
            )
