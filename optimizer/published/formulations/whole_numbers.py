"""The whole numbers of a program over CP-SAT, and how much rounding to them may change.

Times are ticks, rounded to the nearest. A step that the program is known to reach has TICKS of them
for each operator. No path is longer than all operators with a transfer between each two of them, so
that the error of a step is below a small part of the known one whatever the graph's size:
`time_rounding`.

A decided bandwidth b is counted in parts of the widest that its pair of servers may have, which is
its sender's limit or less, where an uplink is narrower. Its slowness 1 / b is counted in parts of
that of the widest. `rate_rounding` is the part of the step that this costs at most.

CP-SAT takes no row whose terms may exceed 64 bits, and no model whose domains do together:
`refuse_beyond_64_bits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placewire.optimizer.arrays import FloatArray, IntArray
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.instance import Instance
from placewire.optimizer.published.formulations.network import Network
from placewire.optimizer.published.formulations.own_step import travelling, used_pairs
from placewire.optimizer.published.formulations.papers import Formulation

TICKS = 200_000
RATE_PARTS, SLOWNESS_PARTS = 2**28, 2**14
# What pairs share, a sender's limit or an uplink, has as many parts.
LIMIT_PARTS = 2**24
# Where at most k pairs share a limit, each keeps 1 / (_KEPT k) of its widest bandwidth, so that a
# slowness has an end.
_KEPT = 2**12
# What a tensor takes at its pair's widest bandwidth is counted in 2^-s ticks, so that there are at
# least _PARTS of them, with s at most _FINEST.
_PARTS, _FINEST = 2**14, 15
# CP-SAT refuses a row whose terms may sum to 2^62; each of two kinds of terms gets half of that.
_LARGEST = 2**61


@dataclass(frozen=True)
class WholeNumbers:
    """known_seconds: a step that the program reaches, where one is known; else its horizon is."""

    formulation: Formulation
    known_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Of `horizon` ticks."""
        return self.known_seconds or self.formulation.horizon_seconds

    @property
    def instance(self) -> Instance:
        return self.formulation.instance

    @property
    def network(self) -> Network:
        return self.formulation.network

    @property
    def horizon(self) -> int:
        """Ticks."""
        return TICKS * max(self.instance.operators, 1)

    @property
    def latest(self) -> int:
        """Ticks within which the program has an answer, if it has one within `horizon`."""
        grown = self.horizon * (1.0 + 2.0 * self.rate_rounding + self.time_rounding)
        return int(np.ceil(grown)) + 1

    @cached_property
    def tick_seconds(self) -> float:
        return self.seconds / self.horizon

    @cached_property
    def pairs_of_a_limit(self) -> int:
        """The most that share one; 0 where no bandwidth is decided."""
        return max((len(limit.pairs) for limit in self.network.shared), default=0)

    @cached_property
    def shared(self) -> list[tuple[IntArray, IntArray]]:
        """(the pairs, the parts of the limit that each takes at its widest bandwidth, rounded up)
        of each limit that pairs of servers share."""
        return [
            (limit.pairs, np.ceil(limit.part * LIMIT_PARTS).astype(np.int64))
            for limit in self.network.shared
        ]

    @property
    def time_rounding(self) -> float:
        """The part of `seconds` by which the ticks change a step at most. An operator is off by
        half a tick. So is a transfer; one at a decided bandwidth by one more, because it ends with
        a tick, and, of fewer than _PARTS parts, by its slowness, at most _KEPT k, times half a
        part."""
        k = self.pairs_of_a_limit
        return (2.0 + _KEPT * k * 2.0 ** -(self._finest + 1) if k else 1.0) / TICKS

    @property
    def _finest(self) -> int:
        """The largest s with which a row of _of_pairs in sorted_intervals.py, with up to four times
        `latest` ticks in parts of slowness, stays below _LARGEST."""
        return min(_FINEST, (_LARGEST // (8 * SLOWNESS_PARTS * self.horizon)).bit_length() - 1)

    @property
    def rate_rounding(self) -> float:
        """The part by which whole rates change the best step at most.

        Of the best b, as a part of the widest, (1 - e) b + d / k with d = 1 / _KEPT and e = d +
        k / LIMIT_PARTS keeps every limit that at most k pairs share, although the part of it that
        each takes is rounded up; it is never below d / k, and makes no transfer longer than
        1 / (1 - e) times. Rounding it down, its slowness up, and the parts of a transfer to the
        nearest, adds the other terms."""
        k = self.pairs_of_a_limit
        if not k:
            return 0.0
        kept = 1 / _KEPT + k / LIMIT_PARTS
        return 1.01 * (kept + _KEPT * k / RATE_PARTS + 1 / SLOWNESS_PARTS + 0.5 / _PARTS)

    @property
    def rounding(self) -> float:
        """By how much nearer to its own bound a search must come, that the answer is within a gap
        of the lowered one: enough for a step of a tenth of `seconds`."""
        return self.rate_rounding + 20.0 * self.time_rounding

    @cached_property
    def operators(self) -> IntArray:
        """int64[n, D]: the ticks of each operator; more than `latest` where it takes longer."""
        return self._no_longer(self.instance.seconds / self.tick_seconds)

    def given(self, edge: int) -> IntArray:
        """int64[q]: the ticks of an edge's transfer between each two devices, without what a
        decided bandwidth adds; more than `latest` where it cannot be sent."""
        bits = self.instance.edges[2][edge]
        return self._no_longer(
            (self.network.latency + bits * self.network.per_bit) / self.tick_seconds
        )

    def _no_longer(self, ticks: FloatArray) -> IntArray:
        most = 2.0 * self.latest + 2.0
        return np.asarray(np.round(np.minimum(ticks, most)), dtype=np.int64)

    def decided(self, edge: int) -> tuple[IntArray, IntArray]:
        """(int64[q], s int64[q]): what a decided bandwidth adds where it is the widest, in 1 / s
        ticks; 0 for a pair of devices for which none is decided."""
        ticks = np.minimum(self._at_the_widest(edge), 2.0 * self.latest)
        finer = np.ceil(np.log2(_PARTS / np.maximum(ticks, 2.0**-_FINEST)))
        scale = 2 ** np.clip(finer, 0, self._finest).astype(np.int64)
        return np.round(ticks * scale).astype(np.int64), scale

    def least_decided(self, edge: int) -> IntArray:
        """int64[q]: the whole ticks that a decided bandwidth adds at least."""
        size, scale = self.decided(edge)
        whole: IntArray = size // scale
        return whole

    def _at_the_widest(self, edge: int) -> FloatArray:
        network, bits = self.network, self.instance.edges[2][edge]
        ticks = np.zeros(len(network.source))
        between = network.decided >= 0
        widest = network.widest[network.decided[between]]
        ticks[between] = bits / widest / self.tick_seconds
        return ticks

    @property
    def least_parts(self) -> int:
        """What each pair keeps of its widest bandwidth."""
        return RATE_PARTS // (_KEPT * max(self.pairs_of_a_limit, 1))

    @staticmethod
    def slowness(parts: int) -> int:
        """The least whole slowness of a rate."""
        return -(-RATE_PARTS * SLOWNESS_PARTS // parts)

    def rates(self, parts: IntArray) -> FloatArray:
        """float64[k] bits per second."""
        return np.asarray(parts / RATE_PARTS * self.network.widest)

    def even_parts(self, device: IntArray) -> IntArray:
        """int64[k]: each limit evenly over the pairs that these devices use, of a pair's several
        limits the narrowest; the others keep what each pair keeps."""
        network, least = self.network, self.least_parts
        used = used_pairs(self.instance, network, device)
        parts = np.where(used, RATE_PARTS, least)
        for pairs, taken in self.shared:
            mine = used[pairs]
            left = LIMIT_PARTS * RATE_PARTS - least * int(taken[~mine].sum())
            even = left // (max(int(mine.sum()), 1) * taken[mine])
            parts[pairs[mine]] = np.minimum(parts[pairs[mine]], even)
        return parts

    def transfers(self, device: IntArray, parts: IntArray) -> IntArray:
        """int64[edges]: the ticks of each edge's transfer, rounded as in the model."""
        late = np.zeros(len(self.instance.edges[0]), dtype=np.int64)
        moves, pairs = travelling(self.instance, self.network, device)
        for e, q in zip(moves.tolist(), pairs.tolist(), strict=True):
            late[e] = self.given(e)[q]
            if (pair := int(self.network.decided[q])) >= 0:
                size, scale = self.decided(e)
                slow = int(size[q]) * self.slowness(int(parts[pair]))
                late[e] += -(-slow // (SLOWNESS_PARTS * int(scale[q])))
        return late


def refuse_beyond_64_bits(formulation: Formulation) -> None:
    """Raises FormulationTooLargeError where CP-SAT could not take the product of a bandwidth and
    its slowness, or of a tensor and a slowness.

    It can take the domains of what is left: those of a pair's bandwidth, slowness and product are
    below 2^43 together, and with at most 128 pairs of a sender there are fewer than 2^15; times are
    fewer than 2^20 (cp_sat.refuse_too_large), each of fewer than 2^38 ticks."""
    whole = WholeNumbers(formulation)
    pairs, operators = whole.pairs_of_a_limit, whole.instance.operators
    if pairs and max(RATE_PARTS, whole.latest) * whole.slowness(whole.least_parts) > _LARGEST:
        raise FormulationTooLargeError(
            f"{formulation.name} is too large: {operators:,} operators, and {pairs:,} bandwidths "
            "to decide of one server or over one uplink, need whole numbers of more than 64 bits, "
            "which cp-sat does not have. Give it fewer servers, or a smaller graph (--reduction "
            "thesis), or use a solver that is not bound to whole numbers: --solver highs"
        )
