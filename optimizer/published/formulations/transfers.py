"""The constraints of transfers, in the three forms that the papers have.

apart       thesis (3.5): one cost wherever the two operators are apart
between     ICC (5), (12): a given cost for each pair of devices
allocated   thesis (3.8), (3.9), (4.6)-(4.8): a decided bandwidth for each pair of servers

The papers write products of binaries. Here each product in (3.5) and (5) is a variable with its
exact linear envelope; (3.8) is the thesis' own envelope. In (3.9) the cost delta * (p0 + t / b)
becomes p0 * delta + t * r with r * b >= delta^2, a cone: delta = 1 makes it r >= 1 / b, and with
delta = 0 it says nothing. The cone has the same solutions as the paper's cubic term, is convex, and
needs no big constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.published.formulations.constraints import Core
from placewire.optimizer.published.formulations.network import Network
from placewire.optimizer.published.formulations.program import (
    NO_HYPERBOLAS,
    Family,
    Hyperbolas,
    RowWriter,
    block,
)


@dataclass(frozen=True)
class Transfers:
    """rate: int64[k], the columns of the decided b, in units of rate_unit bits per second."""

    families: list[Family]
    hyperbolas: Hyperbolas = NO_HYPERBOLAS
    rate: IntArray | None = None
    rate_unit: float = 1.0


def apart(core: Core, network: Network, sending: IntArray) -> Transfers:
    """(3.5) for these edges: f_i + cost (1 - sum_d w_d) <= s_j with w_d = x_{i,d} x_{j,d}."""
    i, j, bits = (column[sending] for column in core.instance.edges)
    devices, k = core.instance.devices, len(sending)
    w = core.columns.add((k, devices))
    cost = np.zeros(k)
    if len(network.source):
        cost = (network.latency[0] + bits * network.per_bit[0]) / core.horizon_seconds
    products = np.stack([np.stack([w, core.x[operators]], axis=2) for operators in (i, j)])
    columns = np.column_stack([core.finish[i], core.start[j], w])
    values = np.column_stack([np.ones(k), -np.ones(k), np.repeat(-cost[:, None], devices, 1)])
    return Transfers(
        [
            block("products of (3.5)", products.reshape(-1, 2), [1.0, -1.0], 0.0),
            block("(3.5)", columns, values, -cost),
        ]
    )


def _pairs_in_use(core: Core, network: Network, sending: IntArray) -> tuple[IntArray, list[Family]]:
    """(delta int64[k, q], the rows of (3.8)): delta is 1 exactly where i is on d and j is on e.

    (3.8) makes delta 0 or 1 where x is 0 or 1, so that delta need not be declared binary. For HiGHS
    it must not be: with thousands of binary deltas the presolve of 1.12 "proves" false optima.
    """
    i, j, _ = (column[sending] for column in core.instance.edges)
    delta = core.columns.add((len(sending), len(network.source)))

    def write(rows: RowWriter) -> None:
        at_source = core.x[i][:, network.source].ravel()
        at_target = core.x[j][:, network.target].ravel()
        flat = delta.ravel()
        rows.add(np.column_stack([at_source, at_target, flat]), [1.0, 1.0, -1.0], 1.0)
        rows.add(np.column_stack([flat, at_source]), [1.0, -1.0], 0.0)
        rows.add(np.column_stack([flat, at_target]), [1.0, -1.0], 0.0)

    count = delta.size
    return delta, [Family("(3.8)", 3 * count, 7 * count, write)]


def between(core: Core, network: Network, sending: IntArray) -> Transfers:
    """ICC (5): f_i + sum_{d != e} x_{i,d} x_{j,e} t / b_{d,e} <= s_j; where the network has p0, the
    thesis' (3.5) for unlike pairs of devices."""
    delta, families = _pairs_in_use(core, network, sending)
    families.append(_arrivals(core, network, sending, delta))
    return Transfers(families)


def decided_rates(core: Core, network: Network) -> Transfers:
    """The columns of b, without any rows."""
    rate_unit = float(network.widest.max(initial=0.0)) or 1.0
    rate = core.columns.add((len(network.server_pairs),), network.widest / rate_unit)
    return Transfers([], rate=rate, rate_unit=rate_unit)


def allocated(core: Core, network: Network, sending: IntArray) -> Transfers:
    """(3.7)-(3.9): the bandwidth of each pair of servers is decided. Beside (3.7), which is of what
    a server sends, there are the uplinks of pods."""
    delta, families = _pairs_in_use(core, network, sending)
    decided = decided_rates(core, network)
    rate, rate_unit = decided.rate, decided.rate_unit
    assert rate is not None
    between_servers = np.flatnonzero(network.decided >= 0)
    slow = core.columns.add((len(sending), len(between_servers)), np.inf)
    families.append(_arrivals(core, network, sending, delta, slow, rate_unit))

    def shares(rows: RowWriter) -> None:
        for limit in network.shared:
            part = limit.part * rate_unit / network.widest[limit.pairs]
            rows.add(rate[limit.pairs][None, :], part[None, :], 1.0)

    terms = sum(len(limit.pairs) for limit in network.shared)
    families.append(Family("(3.7) and uplinks", len(network.shared), terms, shares))
    cones = Hyperbolas(
        slow=slow.ravel(),
        rate=np.tile(rate[network.decided[between_servers]], len(sending)),
        switch=delta[:, between_servers].ravel(),
    )
    return Transfers(families, cones, rate, rate_unit)


def _arrivals(
    core: Core,
    network: Network,
    sending: IntArray,
    delta: IntArray,
    slow: IntArray | None = None,
    rate_unit: float = 1.0,
) -> Family:
    """(3.9), ICC (5), second case: f_i + sum delta (latency + t per_bit) + sum t r <= s_j."""
    i, j, bits = (column[sending] for column in core.instance.edges)
    columns = [np.stack([core.finish[i], core.start[j]], axis=1), delta]
    given = (network.latency + bits[:, None] * network.per_bit) / core.horizon_seconds
    values = [np.tile([1.0, -1.0], (len(i), 1)), given]
    if slow is not None:
        seconds = bits / rate_unit / core.horizon_seconds
        columns.append(slow)
        values.append(np.repeat(seconds[:, None], slow.shape[1], axis=1))
    return block("(3.9)", np.concatenate(columns, axis=1), np.concatenate(values, axis=1), 0.0)
