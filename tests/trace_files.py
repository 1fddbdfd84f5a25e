"""Checks of a trace file, predicted or measured."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from placewire.optimizer.placement import Placement


def check_trace(document: Mapping[str, Any]) -> None:
    """Checks the Trace Event Format: events are in order, none begins before 0 or has a negative
    length, every process and thread is named before its first event, and no two events of a thread
    overlap."""
    events = document["traceEvents"]
    named: set[tuple[str, int, int]] = set()
    by_thread = defaultdict(list)
    last = 0.0
    for event in events:
        place = event["pid"], event["tid"]
        if event["ph"] == "M":
            named.add((event["name"], *place))
            continue
        assert event["ph"] == "X" and event["ts"] >= last and event["dur"] >= 0
        assert ("thread_name", *place) in named and ("process_name", event["pid"], 0) in named
        last = event["ts"]
        by_thread[place].append(event)
    for row in by_thread.values():
        for earlier, later in itertools.pairwise(row):
            assert earlier["ts"] + earlier["dur"] <= later["ts"] + 1e-6


def _made(document: Mapping[str, Any], source: str) -> Iterator[tuple[str, Any]]:
    """(device, event) for all events of a source: predicted, or measured."""
    names = {
        event["pid"]: event["args"]["name"].split()
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    }
    for event in document["traceEvents"]:
        device, made = names[event["pid"]]
        if event["ph"] == "X" and made == source:
            yield device, event


def computed(document: Mapping[str, Any], source: str) -> Mapping[str, Counter[tuple[int, str]]]:
    """For each device, how often each operator ran in each step."""
    found: dict[str, Counter[tuple[int, str]]] = defaultdict(Counter)
    for device, event in _made(document, source):
        if event["cat"] == "compute":
            found[device][event["args"]["step"], event["name"]] += 1
    return found


def expected_operators(placement: Placement, steps: list[int]) -> Mapping[str, Counter[Any]]:
    return {
        device: Counter((step, name) for step in steps for name in order)
        for device, order in placement.order.items()
        if order
    }


def transfers(document: Mapping[str, Any], source: str) -> Counter[tuple[Any, ...]]:
    """The number of events of each message: (device, rail and direction, name, step, peer)."""
    return Counter(
        (device, event["cat"], event["name"], event["args"]["step"], event["args"]["peer"])
        for device, event in _made(document, source)
        if event["cat"] not in ("compute", "step")
    )


def expected_transfers(placement: Placement, steps: list[int]) -> Counter[tuple[Any, ...]]:
    expected: Counter[tuple[Any, ...]] = Counter()
    for m in placement.messages:
        for rail in m.rails:
            for step in steps:
                expected[m.source, f"{rail} sends", m.producer, step, m.destination] += 1
                expected[m.destination, f"{rail} receives", m.producer, step, m.source] += 1
    return expected
