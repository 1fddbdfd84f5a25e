"""The constraints that the papers share, one function per equation: each gives a family of rows.

Time is in units of the horizon, a step that some placement certainly reaches: Q, "an arbitrarily
large number" in (3.6), is therefore 1, and every start and finish at most 1. Rates are in units of
the largest server's transmit limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.network import Network
from placewire.optimizer.published.formulations.program import OBJECTIVE, Columns, Family, RowWriter

_Q = 1.0
_CHUNK = 100_000


@dataclass(frozen=True)
class Core:
    """x int64[n, D], start s and finish f int64[n]: columns that every formulation has."""

    instance: Instance
    columns: Columns
    horizon_seconds: float
    x: IntArray
    start: IntArray
    finish: IntArray


def core(instance: Instance, horizon_seconds: float) -> Core:
    """The objective A and (3.1): x binary, 0 where the operator cannot run."""
    columns = Columns()
    columns.add((1,))
    n = instance.operators
    x = columns.add((n, instance.devices), instance.able, whole=True)
    return Core(instance, columns, horizon_seconds, x, columns.add((n,)), columns.add((n,)))


def horizon(instance: Instance, network: Network) -> float:
    """Seconds: the fastest single device that holds everything; if there is none, everything in a
    row with every tensor sent where it is slowest, decided rates evenly split."""
    seconds, memory = instance.seconds, instance.problem.cluster.memory_bytes
    fits = instance.able.all(axis=0) & (instance.memory_bytes.sum() <= memory)
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
        sender = network.server_pairs[:, 0]
        even = network.transmit[sender] / np.bincount(sender)[sender]
        between = network.decided >= 0
        per_bit[between] = 1.0 / even[network.decided[between]]
    slowest = float(per_bit[np.isfinite(per_bit)].max(initial=0.0))
    return np.asarray(float(network.latency.max()) + bits * slowest)


def _family(equations: str, shape: tuple[int, ...], write: Callable[[RowWriter], None]) -> Family:
    """shape: (rows, terms of each)."""
    return Family(equations, shape[0], shape[0] * shape[1], write)


def step(core: Core) -> Family:
    """A = max f_i, minimised: f_i <= A."""
    columns = np.stack([core.finish, np.full_like(core.finish, OBJECTIVE)], axis=1)
    return _family("objective", columns.shape, lambda rows: rows.add(columns, [1.0, -1.0], 0.0))


def memory(core: Core) -> Family:
    """(3.2), ICC (2): each row in units of its device's memory."""
    limit = core.instance.problem.cluster.memory_bytes
    values = core.instance.memory_bytes[None, :] / limit[:, None]
    columns = core.x.T
    return _family("(3.2)", columns.shape, lambda rows: rows.add(columns, values, 1.0))


def one_device(core: Core, operators: IntArray) -> Family:
    """(3.3), (4.5), ICC (3), (11): each of these operators on exactly one device."""
    columns = core.x[operators]
    return _family("(3.3)", columns.shape, lambda rows: rows.add(columns, 1.0, 1.0, equal=True))


def durations(core: Core) -> Family:
    """(3.4), ICC (4): s_i + p_i = f_i; p_i is the chosen device's where devices are unlike."""
    instance = core.instance
    seconds = instance.seconds / core.horizon_seconds
    times = np.stack([core.finish, core.start], axis=1)
    if instance.homogeneous:
        return _family(
            "(3.4)", times.shape,
            lambda rows: rows.add(times, [1.0, -1.0], seconds[:, 0], equal=True),
        )  # fmt: skip
    columns = np.concatenate([times, core.x], axis=1)
    values = np.concatenate([np.tile([1.0, -1.0], (len(times), 1)), -seconds], axis=1)
    return _family("(3.4)", columns.shape, lambda rows: rows.add(columns, values, 0.0, equal=True))


def together(core: Core) -> Family:
    """A tensor that is a handle to device-local state: both ends share a device (thesis, 3.3)."""
    groups = core.instance.groups
    pairs = [np.stack([g[:-1], g[1:]], axis=1) for g in groups]
    ends = np.concatenate([np.empty((0, 2), dtype=np.int64), *pairs])
    columns = core.x[ends].transpose(0, 2, 1).reshape(-1, 2)
    return _family(
        "co-location", columns.shape,
        lambda rows: rows.add(columns, [1.0, -1.0], 0.0, equal=True),
    )  # fmt: skip


def group_devices(core: Core) -> list[Family]:
    """(4.2)-(4.4), ICC (8)-(10): y_{U,d}, one device for each group, its members there."""
    groups = core.instance.groups
    y = core.columns.add((len(groups), core.instance.devices), whole=True)
    members = np.concatenate([np.empty(0, dtype=np.int64), *groups])
    group = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    columns = np.stack([core.x[members], y[group]], axis=2).reshape(-1, 2)
    return [
        _family("(4.3)", y.shape, lambda rows: rows.add(y, 1.0, 1.0, equal=True)),
        _family(
            "(4.4)", columns.shape,
            lambda rows: rows.add(columns, [1.0, -1.0], 0.0, equal=True),
        ),
    ]  # fmt: skip


def _before(core: Core, i: IntArray, j: IntArray) -> IntArray:
    """Columns of f_i <= s_j, int64[k, 2]."""
    return np.stack([core.finish[i], core.start[j]], axis=1)


def precedence(core: Core, silent: IntArray) -> Family:
    """(3.5), (3.9), (4.6), ICC (5), (12), first case, for these edges: f_i <= s_j."""
    i, j, _ = core.instance.edges
    columns = _before(core, i[silent], j[silent])
    return _family("first case", columns.shape, lambda rows: rows.add(columns, [1.0, -1.0], 0.0))


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

    return _family(equations, (count * devices, 4), write)


def in_sequence(core: Core, pairs: Callable[[], tuple[IntArray, IntArray]], count: int) -> Family:
    """(4.7), ICC (13), first case: both in one group, f_i <= s_j."""
    return _family(
        "(4.7), one group", (count, 2),
        lambda rows: rows.add(_before(core, *pairs()), [1.0, -1.0], 0.0),
    )  # fmt: skip
