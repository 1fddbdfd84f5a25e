"""The constraints that the papers share: one function per equation, which gives a family of rows.

The unit of time is the horizon, a step time that some placement certainly reaches. Q, "an
arbitrarily large number" in (3.6), is therefore 1, and every start and finish is at most 1. The
unit of rates is the widest bandwidth of a pair of servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.network import Network
from placewire.optimizer.published.formulations.program import (
    OBJECTIVE,
    Columns,
    Family,
    RowWriter,
    block,
)

_Q = 1.0
_CHUNK = 100_000


@dataclass(frozen=True)
class Core:
    """The columns of every formulation: x int64[n, D], start s int64[n] and finish f int64[n]."""

    instance: Instance
    columns: Columns
    horizon_seconds: float
    x: IntArray
    start: IntArray
    finish: IntArray


def core(instance: Instance, horizon_seconds: float) -> Core:
    """The objective A and (3.1): x is binary, and 0 where the operator cannot run."""
    columns = Columns()
    columns.add((1,))
    n = instance.operators
    x = columns.add((n, instance.devices), instance.able, whole=True)
    return Core(instance, columns, horizon_seconds, x, columns.add((n,)), columns.add((n,)))


def horizon(instance: Instance, network: Network) -> float:
    """Seconds of the step on the fastest single device that holds everything. Without any: of all
    operators one after the other, with every tensor sent over the slowest pair of devices, where
    decided rates are split evenly."""
    seconds, fits = instance.seconds, instance.holds_everything
    if fits.any():
        longest = float(seconds.sum(axis=0)[fits].min())
    else:
        _, _, bits = instance.edges
        longest = float(seconds.max(axis=1).sum())
        if len(network.source):
            longest += float(_at_even_rates(network, bits[bits > 0]).sum())
    return longest if longest > 0 else 1.0


def _at_even_rates(network: Network, bits: FloatArray) -> FloatArray:
    per_bit = network.per_bit.copy()
    if len(network.server_pairs):
        between = network.decided >= 0
        per_bit[between] = 1.0 / network.even[network.decided[between]]
    slowest = float(per_bit[np.isfinite(per_bit)].max(initial=0.0))
    return np.asarray(float(network.latency.max()) + bits * slowest)


def step(core: Core) -> Family:
    """A = max f_i, which is minimised: f_i <= A."""
    columns = np.stack([core.finish, np.full_like(core.finish, OBJECTIVE)], axis=1)
    return block("objective", columns, [1.0, -1.0], 0.0)


def memory(core: Core) -> Family:
    """(3.2), ICC (2): each row in units of its device's memory."""
    limit = core.instance.problem.cluster.memory_bytes
    return block("(3.2)", core.x.T, core.instance.memory_bytes[None, :] / limit[:, None], 1.0)


def one_device(core: Core, operators: IntArray) -> Family:
    """(3.3), (4.5), ICC (3), (11): each of these operators on exactly one device."""
    return block("(3.3)", core.x[operators], 1.0, 1.0, equal=True)


def durations(core: Core) -> Family:
    """(3.4), ICC (4): s_i + p_i = f_i, where p_i is the time on the chosen device."""
    instance = core.instance
    seconds = instance.seconds / core.horizon_seconds
    times = np.stack([core.finish, core.start], axis=1)
    if instance.homogeneous:
        return block("(3.4)", times, [1.0, -1.0], seconds[:, 0], equal=True)
    columns = np.concatenate([times, core.x], axis=1)
    values = np.concatenate([np.tile([1.0, -1.0], (len(times), 1)), -seconds], axis=1)
    return block("(3.4)", columns, values, 0.0, equal=True)


def together(core: Core) -> Family:
    """Both ends of a tensor that is a handle to device-local state share a device (thesis, 3.3)."""
    pairs = [np.stack([g[:-1], g[1:]], axis=1) for g in core.instance.groups]
    ends = np.concatenate([np.empty((0, 2), dtype=np.int64), *pairs])
    columns = core.x[ends].transpose(0, 2, 1).reshape(-1, 2)
    return block("co-location", columns, [1.0, -1.0], 0.0, equal=True)


def group_devices(core: Core) -> list[Family]:
    """(4.2)-(4.4), ICC (8)-(10): y_{U,d}, one device for each group, where its members run."""
    groups = core.instance.groups
    y = core.columns.add((len(groups), core.instance.devices), whole=True)
    members = np.concatenate([np.empty(0, dtype=np.int64), *groups])
    group = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    columns = np.stack([core.x[members], y[group]], axis=2).reshape(-1, 2)
    return [
        block("(4.3)", y, 1.0, 1.0, equal=True),
        block("(4.4)", columns, [1.0, -1.0], 0.0, equal=True),
    ]


def _before(core: Core, i: IntArray, j: IntArray) -> IntArray:
    """The columns int64[k, 2] of f_i <= s_j."""
    return np.stack([core.finish[i], core.start[j]], axis=1)


def precedence(core: Core, silent: IntArray) -> Family:
    """(3.5), (3.9), (4.6), ICC (5), (12), first case, for these edges: f_i <= s_j."""
    i, j, _ = core.instance.edges
    return block("first case", _before(core, i[silent], j[silent]), [1.0, -1.0], 0.0)


def in_order(
    core: Core, pairs: Callable[[], tuple[IntArray, IntArray]], count: int, equations: str
) -> Family:
    """(3.6), (4.7), ICC (6), (13): f_i <= s_j + Q (2 - x_{i,d} - x_{j,d}) on every device."""
    devices = core.instance.devices

    def write(rows: RowWriter) -> None:
        first, second = pairs()
        for k in range(0, len(first), _CHUNK):
            i, j = first[k : k + _CHUNK], second[k : k + _CHUNK]
            times = np.repeat(_before(core, i, j), devices, axis=0)
            columns = np.column_stack([times, core.x[i].ravel(), core.x[j].ravel()])
            rows.add(columns, [1.0, -1.0, _Q, _Q], 2 * _Q)

    return Family(equations, count * devices, 4 * count * devices, write)


def in_sequence(core: Core, pairs: Callable[[], tuple[IntArray, IntArray]], count: int) -> Family:
    """(4.7), ICC (13), first case: f_i <= s_j where both are in one group."""
    return Family(
        "(4.7), one group", count, 2 * count,
        lambda rows: rows.add(_before(core, *pairs()), [1.0, -1.0], 0.0),
    )  # fmt: skip
