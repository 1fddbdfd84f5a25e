"""Words graphs and placements, with a bar for each device, in lines of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.device_names import server_of
from placewire.optimizer.explain.uplinks import uplink_words
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem
from placewire.optimizer.quantities import format_bits_per_second, format_bytes, format_step
from placewire.optimizer.simulation.bundles import PlacedStep, bundles_of, with_bundles
from placewire.optimizer.simulation.simulate import Timeline, simulate

_BAR_COLUMNS = 72
_MOST_ROWS = 24


def graph_lines(graph: OperatorGraph) -> list[str]:
    lines = [
        f"graph {graph.name}: {graph.operator_count} operators, {graph.tensor_count} tensors",
        f"  structure {graph.structure_hash[:16]}   profile {graph.profile_digest[:16]}",
        f"  weights {format_bytes(float(graph.weight_bytes.sum()))}, activations "
        f"{format_bytes(float(graph.activation_bytes.sum()))}, tensors "
        f"{format_bytes(float(graph.tensor_bytes.sum()))}",
    ]
    for k, name in enumerate(graph.device_types):
        column = graph.seconds[:, k]
        finite = np.isfinite(column)
        total = format_step(float(column[finite].sum()))
        missing = f", {int((~finite).sum())} cannot run" if not finite.all() else ""
        lines.append(f"  on {name}: {total} in all{missing}")
    if not graph.device_types:
        lines.append("  no times yet: profile it")
    return lines


def verdict(placement: Placement) -> str:
    """Whether it is worth it to distribute the step, in one sentence."""
    step, alone = placement.step_seconds, placement.best_single_device_seconds
    if len(placement.devices_used) <= 1 and placement.engine == "single":
        words = f"one device, as asked, takes {format_step(step)}"
    elif len(placement.devices_used) <= 1:
        words = f"do not distribute this: one device takes {format_step(step)}"
    elif alone is None:
        words = "distributed because no single device has memory for it"
    elif alone < step:
        words = f"do not distribute this so: the best single device takes {format_step(alone)}"
    else:
        words = f"{alone / step:.2f} times as fast as one device ({format_step(alone)})"
    below = format_step(placement.least_bound_seconds)
    if len(placement.variants) > 1:
        return f"{words}; no placement of these variants can be below {below}"
    return f"{words}; no placement can be below {below}"


def placement_lines(placement: Placement) -> list[str]:
    lines = [
        f"step {format_step(placement.step_seconds)}, bound "
        f"{format_step(placement.bound_seconds)}, gap {placement.gap:.1%}   "
        f"({placement.model}, {placement.sharing})",
        *wrapped(verdict(placement)),
    ]
    if placement.bound_reason:
        lines += wrapped(f"bound by: {placement.bound_reason}")
    lines += wrapped(
        f"engine {placement.engine}, seed {placement.seed}, reduction {placement.reduction}"
    )
    stages = ", ".join(f"{name} {took:.2f}" for name, took in placement.wall_seconds.items())
    lines += wrapped(f"took {sum(placement.wall_seconds.values()):.2f} s: {stages}")
    used = [name for name in placement.cluster.device_names if placement.order.get(name)]
    for device in used[:_MOST_ROWS]:
        lines.append(f"  {device:<24} {len(placement.order[device]):>6} operators")
    if idle := len(placement.cluster.device_names) - len(used):
        lines.append(f"  {idle} of {len(placement.cluster.device_names)} devices run nothing")
    if len(used) > _MOST_ROWS:
        lines.append(f"  … and {len(used) - _MOST_ROWS} more devices")
    lines += _pair_lines(placement)
    lines += [row for words in uplink_words(placement) for row in wrapped(words)]
    return lines + variant_lines(placement)


def considered_lines(considered: Sequence[Placement], taken: Placement) -> list[str]:
    """The placement found under each sharing, the shortest step first; within 1 % is a tie."""
    return [
        "sharings, each with a placement of its own:",
        *(
            f"  {one.sharing:<10} step {format_step(one.step_seconds)}, bound "
            f"{format_step(one.bound_seconds)}, {len(one.devices_used)} devices"
            + (", taken" if one.sharing == taken.sharing else "")
            for one in sorted(considered, key=lambda one: one.step_seconds)
        ),
    ]


def variant_lines(placement: Placement) -> list[str]:
    """The variants that were compared, in the order given."""
    if not placement.variants:
        return []
    lines = [f"  {'variant':<28} {'operators':>9} {'one device':>11} {'bound':>11} {'step':>11}"]
    for one in placement.variants:
        alone, step = one.single_device_seconds, one.step_seconds
        lines.append(
            f"  {one.name:<28} {one.operators:>9} "
            f"{'does not fit' if alone is None else format_step(alone):>11} "
            f"{format_step(one.bound_seconds):>11} "
            f"{'not searched' if step is None else format_step(step):>11}"
            + (", taken" if one.structure_hash == placement.structure_hash else "")
        )
    return lines


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=indent, subsequent_indent=indent + "  ")


def _pair_lines(placement: Placement) -> list[str]:
    """Messages, bytes and rates of pairs of servers, the busiest pairs first."""
    traffic = traffic_by_pair(placement)
    rates: dict[tuple[str, str], list[str]] = defaultdict(list)
    for source, target, rail, rate in placement.rates_bits_per_second:
        rates[source, target].append(f"{rail} {format_bits_per_second(rate)}")
    lines = []
    for pair, (count, size) in list(traffic.items())[:_MOST_ROWS]:
        row = f"  {pair[0]} -> {pair[1]}: {count} messages, {format_bytes(size)}"
        lines.append(f"{row}   {', '.join(rates[pair])}"[:100])
    if len(traffic) > _MOST_ROWS:
        lines.append(f"  … and {len(traffic) - _MOST_ROWS} more pairs")
    return lines


def traffic_by_pair(placement: Placement) -> dict[tuple[str, str], tuple[int, int]]:
    """(messages, bytes) of each pair (source server, destination server), the most bytes first."""
    traffic: dict[tuple[str, str], tuple[int, int]] = {}
    for message in placement.messages:
        pair = server_of(message.source), server_of(message.destination)
        count, size = traffic.get(pair, (0, 0))
        traffic[pair] = count + 1, size + message.bytes
    return dict(sorted(traffic.items(), key=lambda item: -item[1][1]))


def problem_of(graph: OperatorGraph, placement: Placement) -> Problem:
    return Problem(
        graph, placement.cluster, placement.sharing, placement.model, placement.backend,
        placement.floor,
    )  # fmt: skip


def indices_of(graph: OperatorGraph, placement: Placement) -> tuple[IntArray, list[list[int]]]:
    """(device int64[n], the operators of each device in order), by number."""
    names = {name: d for d, name in enumerate(placement.cluster.device_names)}
    device = np.array([names[placement.operators[i]] for i in graph.ids], dtype=np.int64)
    order = [
        [graph.index_of[i] for i in placement.order.get(name, ())]
        for name in placement.cluster.device_names
    ]
    return device, order


def step_of(graph: OperatorGraph, placement: Placement) -> PlacedStep:
    """The placed step with its bundles as operators."""
    device, order = indices_of(graph, placement)
    return with_bundles(PlacedStep(graph, device, order), bundles_of(graph, placement))


def timeline_of(graph: OperatorGraph, placement: Placement) -> tuple[Problem, Timeline]:
    """Simulates the placement with its own orders and rates; bundles are operators of the problem.
    The placement must pass `check`."""
    step = step_of(graph, placement)
    problem = problem_of(step.graph, placement)
    return problem, simulate(problem, step.device, order=step.order, rates=placement.rates)


def gantt_lines(problem: Problem, timeline: Timeline) -> list[str]:
    """One bar per device over the step: # busy, + partly busy, . idle; then its peak memory."""
    names = problem.cluster.device_names
    step = timeline.step_seconds or 1.0  # an empty graph takes no time
    lines = []
    for d, order in enumerate(timeline.order[:_MOST_ROWS]):
        busy = np.zeros(_BAR_COLUMNS)
        for i in order:
            _fill(busy, timeline.start[i] / step, timeline.finish[i] / step)
        bar = "".join("#" if x > 0.75 else "+" if x > 0.05 else "." for x in busy)
        peak = format_bytes(float(timeline.peak_memory_bytes[d]))
        lines.append(f"{names[d][-12:]:<12} {bar} {peak:>11}")
    if len(names) > _MOST_ROWS:
        lines.append(f"… and {len(names) - _MOST_ROWS} more devices")
    if (program := problem.graph.notes.get("program_bytes")) is not None:
        lines.append(
            f"beside these tensors, a rank's program takes {format_bytes(float(program))}, as "
            "measured with the profile"
        )
    return lines


def _fill(busy: np.ndarray, start: float, end: float) -> None:
    """Adds to each column the part of it that start..end covers, on a scale of 0..1."""
    low, high = start * len(busy), end * len(busy)
    for column in range(int(low), min(len(busy), int(np.ceil(high)))):
        busy[column] += min(high, column + 1) - max(low, column)
