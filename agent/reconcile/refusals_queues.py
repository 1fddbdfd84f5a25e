"""Refusals about shapers, queues, and what steers traffic into them."""

from __future__ import annotations

from placewire.agent.contract.capabilities import CLASSFUL_QDISC, CLASSIFIER, TrafficControl
from placewire.agent.contract.entries import (
    CLASSIFIER_PREFERENCE_BASE,
    DEFAULT_QUEUE,
    FLOW_PRIORITY,
    LAST_QUEUE,
    Queue,
    Shaper,
)
from placewire.agent.contract.state import DesiredState, ObservedState, Refusal

# Open vSwitch before 3.2 counts rates in 32-bit bytes per second.
LARGEST_32_BIT_RATE = 34_000_000_000
# Rounding of many queues' rates may add up to a little more than the whole.
ROUNDING = 1e-4
MEGABIT = 1_000_000


def queue_refusals(wanted: DesiredState, open_vswitch_version: tuple[int, ...]) -> list[Refusal]:
    bridged = {bridge.nic for bridge in wanted.bridges}
    shapers = {shaper.nic: shaper for shaper in wanted.shapers}
    found = []
    for shaper in wanted.shapers:
        queues = [queue for queue in wanted.queues if queue.nic == shaper.nic]
        if shaper.nic not in bridged:
            found.append(
                _refuse(f"shaper of {shaper.nic}", "its NIC is in no bridge", "add the bridge")
            )
        found += _shaper(shaper, queues)
    for queue in wanted.queues:
        found += _queue(queue, shapers.get(queue.nic))
    rated: tuple[Shaper | Queue, ...] = (*wanted.shapers, *wanted.queues)
    wide = [
        (entry.key, entry.max_bits_per_second)
        for entry in rated
        if entry.max_bits_per_second > LARGEST_32_BIT_RATE
    ]
    if open_vswitch_version < (3, 2):
        version = ".".join(str(part) for part in open_vswitch_version)
        found += [
            _refuse(
                key,
                f"{rate} bit/s is more than Open vSwitch {version} can count",
                "install Open vSwitch 3.2 or newer, or plan at most 34 Gbit/s per NIC",
            )
            for key, rate in wide
        ]
    return found


def kernel_refusals(wanted: DesiredState, kernel: TrafficControl) -> list[Refusal]:
    """Open vSwitch takes queues in without a word where the kernel has nothing to make them of."""
    found = []
    if kernel.lacks(CLASSFUL_QDISC):
        found += [
            _refuse(f"shaper of {s.nic}", "this kernel has no HTB", "load or build sch_htb")
            for s in wanted.shapers
        ]
    if kernel.lacks(CLASSIFIER):
        found += [
            _refuse(
                f"classifier {c.key}",
                "this kernel has no u32 classifier, and the userspace datapath ignores set_queue",
                "load or build cls_u32, or use the kernel datapath (modprobe openvswitch)",
            )
            for c in wanted.classifiers
        ]
    return found


def speed_refusals(wanted: DesiredState, observed: ObservedState) -> list[Refusal]:
    """Where the NIC says how fast it is, nothing faster can be promised on it."""
    speed = {nic.name: nic.speed_bits_per_second for nic in observed.nics}
    return [
        _refuse(
            f"NIC {shaper.nic}",
            f"runs at {limit / MEGABIT:g} Mbit/s, less than the "
            f"{shaper.max_bits_per_second / MEGABIT:g} Mbit/s that are planned on it",
            f"look at its cable and its switch port (`ethtool {shaper.nic}`), or plan it with its "
            "real rate",
        )
        for shaper in wanted.shapers
        if (limit := speed.get(shaper.nic)) and shaper.max_bits_per_second > limit
    ]


def _shaper(shaper: Shaper, queues: list[Queue]) -> list[Refusal]:
    where = f"shaper of {shaper.nic}"
    found = []
    if shaper.max_bits_per_second <= 0:
        found.append(_refuse(where, "its rate is not positive", "give the NIC's rate"))
    if not any(queue.queue_id == DEFAULT_QUEUE for queue in queues):
        # Open vSwitch would give everything unclaimed, SSH among it, 12 Kbit/s.
        found.append(_refuse(where, "queue 0 is not defined", "define queue 0 for the rest"))
    promised = sum(queue.min_bits_per_second for queue in queues)
    if promised > shaper.max_bits_per_second * (1 + ROUNDING):
        found.append(
            _refuse(
                where,
                f"its queues' minimums add up to {promised} of {shaper.max_bits_per_second} bit/s",
                "promise less",
            )
        )
    return found


def _queue(queue: Queue, shaper: Shaper | None) -> list[Refusal]:
    found = []
    if not 0 <= queue.queue_id <= LAST_QUEUE:
        found.append(
            _refuse(queue.key, f"its id is outside 0..{LAST_QUEUE}", "number queues from 0")
        )
    if not 0 < queue.min_bits_per_second <= queue.max_bits_per_second:
        found.append(
            _refuse(
                queue.key,
                f"min {queue.min_bits_per_second} and max {queue.max_bits_per_second} bit/s: "
                "not 0 < min <= max",
                "raise max or lower min",
            )
        )
    if queue.burst_bits <= 0:
        found.append(_refuse(queue.key, "has no burst", "give one of at least a few frames"))
    if shaper is None:
        found.append(_refuse(queue.key, "its NIC has no shaper", "add the shaper"))
    elif queue.max_bits_per_second > shaper.max_bits_per_second * (1 + ROUNDING):
        found.append(
            _refuse(
                queue.key,
                f"its max {queue.max_bits_per_second} is above its NIC's "
                f"{shaper.max_bits_per_second} bit/s",
                "lower it",
            )
        )
    return found


def steering_refusals(wanted: DesiredState, observed: ObservedState) -> list[Refusal]:
    nic_of = {bridge.name: bridge.nic for bridge in wanted.bridges}
    defined = {(queue.nic, queue.queue_id) for queue in wanted.queues}
    foreign = {(f.collection, f.key): f.text for f in observed.foreign}
    found = []
    for flow in wanted.flows:
        if (nic_of.get(flow.bridge), flow.queue_id) not in defined:
            found.append(
                _refuse(f"flow {flow.key}", f"queue {flow.queue_id} is not defined", "define it")
            )
        if (text := foreign.get(("flows", flow.key))) is not None:
            found.append(
                _refuse(
                    f"flow {flow.key}",
                    f"a foreign flow has its match and priority {FLOW_PRIORITY}: {text}",
                    "remove that flow",
                )
            )
    for classifier in wanted.classifiers:
        if (classifier.nic, classifier.queue_id) not in defined:
            found.append(
                _refuse(
                    f"classifier {classifier.key}",
                    f"queue {classifier.queue_id} is not defined",
                    "define it",
                )
            )
        if (text := foreign.get(("classifiers", classifier.nic))) is not None:
            found.append(
                _refuse(
                    f"classifier {classifier.key}",
                    f"a foreign tc filter is in our preferences from "
                    f"{CLASSIFIER_PREFERENCE_BASE}: {text}",
                    "give that filter another preference",
                )
            )
    return found


def _refuse(where: str, what: str, remedy: str) -> Refusal:
    return Refusal(what=what, where=where, remedy=remedy)
