"""Graphs and placements in words and bars that fit 100 columns."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from optimizer.graph import OperatorGraph
from optimizer.placement import Placement
from optimizer.problem import Problem
from optimizer.simulate import Timeline, simulate

_BAR_COLUMNS = 72
_MOST_ROWS = 24


def seconds_text(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(seconds) * factor >= 1.0 or unit == "us":
            return f"{seconds * factor:.3f} {unit}"
    raise AssertionError("unreachable: us always returns")


def bytes_text(count: float) -> str:
    for unit, factor in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def rate_text(bits_per_second: float) -> str:
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits_per_second >= factor:
            return f"{bits_per_second / factor:.2f} {unit}"
    return f"{bits_per_second:.0f} bit/s"


def graph_lines(graph: OperatorGraph) -> list[str]:
    lines = [
        f"graph {graph.name}: {graph.operator_count} operators, {graph.tensor_count} tensors",
        f"  structure {graph.structure_hash[:16]}   profile {graph.profile_digest[:16]}",
        f"  weights {bytes_text(float(graph.weight_bytes.sum()))}, activations "
        f"{bytes_text(float(graph.activation_bytes.sum()))}, tensors "
        f"{bytes_text(float(graph.tensor_bytes.sum()))}",
    ]
    for k, name in enumerate(graph.device_types):
        column = graph.seconds[:, k]
        finite = np.isfinite(column)
        total = seconds_text(float(column[finite].sum()))
        missing = f", {int((~finite).sum())} cannot run" if not finite.all() else ""
        lines.append(f"  on {name}: {total} in all{missing}")
    if not graph.device_types:
        lines.append("  no times yet: profile it")
    return lines


def verdict(placement: Placement) -> str:
    """Whether to distribute, in one sentence."""
    step, alone = placement.step_seconds, placement.single_device_seconds
    floor = f"no placement can be below {seconds_text(placement.bound_seconds)}"
    if len(placement.devices_used) == 1:
        return f"do not distribute this: one device takes {seconds_text(step)}; {floor}"
    if alone is None:
        return f"distributed because no single device has memory for it; {floor}"
    return f"{alone / step:.2f} times as fast as one device ({seconds_text(alone)}); {floor}"


def placement_lines(placement: Placement) -> list[str]:
    lines = [
        f"step {seconds_text(placement.step_seconds)}, bound "
        f"{seconds_text(placement.bound_seconds)}, gap {placement.gap:.1%}   "
        f"({placement.model}, {placement.sharing})",
        f"  {verdict(placement)}",
        f"  engine {placement.engine}, seed {placement.seed}, reduction {placement.reduction}, "
        f"{sum(placement.wall_seconds.values()):.1f} s",
    ]
    for device in placement.cluster.device_names:
        count = len(placement.order.get(device, ()))
        lines.append(f"  {device:<24} {count:>6} operators")
    return lines + _pair_lines(placement)


def _pair_lines(placement: Placement) -> list[str]:
    """Messages, bytes and rates per pair of servers; the busiest where there are many."""
    count: dict[tuple[str, str], int] = defaultdict(int)
    size: dict[tuple[str, str], int] = defaultdict(int)
    for message in placement.messages:
        pair = (message.source.rsplit("/", 1)[0], message.destination.rsplit("/", 1)[0])
        count[pair] += 1
        size[pair] += message.bytes
    rates: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, target, rail, rate in placement.rates_bits_per_second:
        rates[source, target].append(f"{rail} {rate_text(rate)}")
    lines = []
    for pair in sorted(size, key=lambda pair: -size[pair])[:_MOST_ROWS]:
        row = f"  {pair[0]} -> {pair[1]}: {count[pair]} messages, {bytes_text(size[pair])}"
        lines.append(f"{row}   {', '.join(rates.get(pair, []))}"[:100])
    if len(size) > _MOST_ROWS:
        lines.append(f"  … and {len(size) - _MOST_ROWS} more pairs")
    return lines


def timeline_of(graph: OperatorGraph, placement: Placement) -> tuple[Problem, Timeline]:
    """The placement's own orders and rates, simulated. The placement must pass `check`."""
    problem = Problem(graph, placement.cluster, placement.sharing, placement.model)
    names = {name: d for d, name in enumerate(placement.cluster.device_names)}
    device = np.array([names[placement.operators[i]] for i in graph.ids], dtype=np.int64)
    order = [
        [graph.index_of[i] for i in placement.order.get(name, ())]
        for name in placement.cluster.device_names
    ]
    return problem, simulate(problem, device, order=order, rates=placement.rates)


def gantt_lines(problem: Problem, timeline: Timeline) -> list[str]:
    """One bar per device over the step: # busy, + busy in part, . idle; then its peak of memory."""
    names = problem.cluster.device_names
    step = timeline.step_seconds
    lines = []
    for d, order in enumerate(timeline.order[:_MOST_ROWS]):
        busy = np.zeros(_BAR_COLUMNS)
        for i in order:
            _fill(busy, timeline.start[i] / step, timeline.finish[i] / step)
        bar = "".join("#" if x > 0.75 else "+" if x > 0.05 else "." for x in busy)
        peak = bytes_text(float(timeline.peak_memory_bytes[d]))
        lines.append(f"{names[d][-12:]:<12} {bar} {peak:>11}")
    if len(names) > _MOST_ROWS:
        lines.append(f"… and {len(names) - _MOST_ROWS} more devices")
    return lines


def _fill(busy: np.ndarray, start: float, end: float) -> None:
    """Adds to each column the part of it that start..end (of 0..1) covers."""
    low, high = start * len(busy), end * len(busy)
    for column in range(int(low), min(len(busy), int(np.ceil(high)))):
        busy[column] += min(high, column + 1) - max(low, column)
