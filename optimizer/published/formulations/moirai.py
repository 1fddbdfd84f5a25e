"""Moirai's mixed-integer program.

Zhang, Zhu, Gao, Yang, Wang: "Moirai: towards optimal placement for distributed inference on
heterogeneous devices" (arXiv 2312.04025, 2023), section III-D. A data flow between two operators is
a node of its own, q, with a start and an end (figure 8). x_ik says that operator i is on device k,
z_q that flow q travels, u_qkk' over which channel it travels, and delta which of two comes first.
The unit of time is the horizon, so that the paper's three large numbers are all 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.published.formulations import constraints as c
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.network import Network
from placewire.optimizer.published.formulations.program import Family, RowWriter, block

_CHUNK = 20_000
# No solver gets rows for more pairs than this, so that counting the rest would only take time.
_MOST_PAIRS = 2_000_000


@dataclass(frozen=True)
class Flows:
    """The nodes that figure 8 adds: flow q carries bits[q] from operator tail[q] to head[q].

    Columns: z, start and end int64[F]; used int64[F, pairs of the network], the paper's u."""

    tail: IntArray
    head: IntArray
    bits: FloatArray
    z: IntArray
    start: IntArray
    end: IntArray
    used: IntArray


def families(core: c.Core, network: Network) -> list[Family]:
    """All constraints but the objective, (4b) and (4d), which the papers have in common."""
    i, j, bits = core.instance.edges
    sending, add = np.flatnonzero(bits > 0), core.columns.add
    shape = (len(sending),)
    flows = Flows(
        i[sending], j[sending], bits[sending], add(shape), add(shape), add(shape),
        add((*shape, len(network.source)), network.reached),
    )  # fmt: skip
    return [
        c.one_device(core, np.arange(core.instance.operators)),  # (4c)
        c.together(core),
        c.precedence(core, np.flatnonzero(bits == 0)),
        _flow_precedence(core, flows),
        _one_at_a_time(core),
        *_communication(core, network, flows),
        _congestion(core, flows),
    ]


def _flow_precedence(core: c.Core, flows: Flows) -> Family:
    """(4a) along the augmented graph: C_i <= S_q and C_q <= S_j."""
    before = np.stack([core.finish[flows.tail], flows.start], axis=1)
    after = np.stack([flows.end, core.start[flows.head]], axis=1)
    return block("(4a)", np.concatenate([before, after]), [1, -1], 0.0)


def _one_at_a_time(core: c.Core) -> Family:
    """(6): of two operators on one device without a path between them, one ends first.

    S_i >= C_j - M delta - M (2 - x_ik - x_jk), and the other way round with 1 - delta.
    """
    instance = core.instance
    count, devices = sum(instance.parallel_pair_counts), instance.devices
    delta = core.columns.add((count,), whole=True)

    def write(rows: RowWriter) -> None:
        inside, outside = instance.parallel_pairs()
        pairs = np.concatenate([np.stack(inside, axis=1), np.stack(outside, axis=1)])
        for at in range(0, count, _CHUNK):
            i, j = pairs[at : at + _CHUNK].T
            for first, second, sign in ((j, i, -1.0), (i, j, 1.0)):
                when = [core.finish[first], core.start[second], delta[at : at + _CHUNK]]
                columns = np.repeat(np.stack(when, axis=1), devices, axis=0)
                columns = np.column_stack([columns, core.x[i].ravel(), core.x[j].ravel()])
                rows.add(columns, [1.0, -1.0, sign, 1.0, 1.0], 2.0 if sign < 0 else 3.0)

    return Family("(6)", 2 * count * devices, 10 * count * devices, write)


def _communication(core: c.Core, network: Network, flows: Flows) -> list[Family]:
    """(7): a flow travels where its ends are apart, over their channel, for as long as it takes."""
    count, pairs = flows.used.shape
    at_tail, at_head = core.x[flows.tail], core.x[flows.head]
    z = np.broadcast_to(flows.z[:, None], at_tail.shape)
    ends = np.stack([z, at_tail, at_head], axis=2).reshape(-1, 3)
    per_bit = np.where(network.reached > 0, network.per_bit, 0.0)
    seconds = network.latency + flows.bits[:, None] * per_bit

    def travels(rows: RowWriter) -> None:
        rows.add(ends, [1.0, 1.0, 1.0], 2.0)
        rows.add(ends, [-1.0, 1.0, -1.0], 0.0)
        rows.add(ends, [-1.0, -1.0, 1.0], 0.0)

    def channel(rows: RowWriter) -> None:
        all_used = np.column_stack([flows.z, flows.used])
        rows.add(all_used, np.append(-1.0, np.ones(pairs)), 0.0, equal=True)
        both = at_tail[:, network.source], at_head[:, network.target], flows.used
        rows.add(np.stack(both, axis=2).reshape(-1, 3), [1.0, 1.0, -1.0], 1.0)

    def lasts(rows: RowWriter) -> None:
        columns = np.column_stack([flows.end, flows.start, flows.used])
        whole = np.tile([1.0, -1.0], (count, 1))
        took = -seconds / core.horizon_seconds
        rows.add(columns, np.concatenate([whole, took], axis=1), 0.0, equal=True)

    return [
        Family("(7) for z", 3 * len(ends), 3 * ends.size, travels),
        Family("(7) for u", count * (1 + pairs), count * (1 + 4 * pairs), channel),
        Family("(7) for times", count, count * (2 + pairs), lasts),
    ]


def _congestion(core: c.Core, flows: Flows) -> Family:
    """(8): of two flows that travel and leave the same device, or reach the same, one ends first.

    With q from a to b and r from c to d: S_q >= C_r - M delta - M (2 - z_q - z_r)
    + M (x_ak + x_ck - x_bk - x_dk - 2); the same with the signs of the last four x changed; and
    both the other way round with 1 - delta.
    """
    devices, count = core.instance.devices, 0
    for _, later in _concurrent(core.instance, flows):
        count += len(later)
        if count > _MOST_PAIRS:
            raise FormulationTooLargeError(
                f"moirai is too large: more than {_MOST_PAIRS:,} pairs of data flows may meet, "
                f"each with {4 * devices} rows of (8). Use --solver cp-sat, which takes larger "
                "graphs, or engine auto, which takes graphs of any size"
            )
    delta = core.columns.add((count,), whole=True)

    def write(rows: RowWriter) -> None:
        at = 0
        for q, later in _concurrent(core.instance, flows):
            pair = np.full_like(later, q), later
            mine = delta[at : at + len(later)]
            at += len(later)
            operators = [flows.tail[pair[0]], flows.tail[later], flows.head[pair[0]],
                         flows.head[later]]  # fmt: skip
            where = [core.x[i].ravel() for i in operators]
            travels = [flows.z[pair[0]], flows.z[later]]
            for first, second, sign in ((1, 0, -1.0), (0, 1, 1.0)):
                when = [flows.end[pair[first]], flows.start[pair[second]], mine, *travels]
                columns = np.repeat(np.stack(when, axis=1), devices, axis=0)
                columns = np.column_stack([columns, *where])
                limit = 4.0 if sign < 0 else 5.0
                for leave in (1.0, -1.0):
                    ends = [leave, leave, -leave, -leave]
                    rows.add(columns, [1.0, -1.0, sign, 1.0, 1.0, *ends], limit)

    return Family("(8)", 4 * count * devices, 36 * count * devices, write)


def _concurrent(instance: Instance, flows: Flows) -> Iterator[tuple[int, IntArray]]:
    """(q, the later flows that may be sent at the same time): no path leads from the head of one to
    the tail of the other."""
    for q in range(len(flows.tail)):
        later = np.arange(q + 1, len(flows.tail))
        apart = ~instance.reaches(flows.head[q], flows.tail[later])
        apart &= ~instance.reaches(flows.head[later], flows.tail[q])
        yield q, later[apart]
