"""Adds to the exact model that what servers send and receive takes their NICs.

For clusters of one device per server and no links, where a unit's device is also its server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray
from placewire.optimizer.bounds.exact_model import ExactModel
from placewire.optimizer.bounds.exact_rates import Sent
from placewire.optimizer.bounds.relaxation import nic_capacities
from placewire.optimizer.problem import Problem

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntVar

# So many times within the step are tried as begin, and as end, of a window whose bytes are summed.
_WINDOWS = 6
# A tensor that takes the fastest server at least this part of the horizon counts once for each
# server that reads it. Others count once, because each count is a literal of the model.
_LARGE = 0.01


@dataclass(frozen=True)
class _Volume:
    """A tensor that other units than its producer's read. early, late: seconds of the step before
    and after which none of it is sent; units: those of its other readers."""

    bits: float
    unit: int
    units: tuple[int, ...]
    early: float
    late: float


def add_volumes(exact: ExactModel, problem: Problem, tensors: Sequence[Sent]) -> None:
    """Under `contended`, what a server sends between two moments of the step fits its NICs, and so
    does what it receives. A server that carries nothing sends nothing: each of its tensors would
    take for ever."""
    volumes = list(_volumes(exact, tensors))
    if problem.model == "contended" and volumes:
        _Volumes(exact, nic_capacities(problem).sum(axis=1), volumes).add()


def _volumes(exact: ExactModel, tensors: Sequence[Sent]) -> Iterator[_Volume]:
    unit = exact.relaxation.unit.tolist()
    head, tail = exact.relaxation.heads_and_tails
    work = exact.relaxation.work
    for tensor in tensors:
        made = tensor.producer
        readers = [c for c in tensor.consumers if unit[c] != unit[made]]
        if readers:
            # It may be that only the reader which can wait longest is on another server.
            late = min(float(work[c] + tail[c]) for c in readers)
            units = tuple(sorted({unit[c] for c in readers}))
            yield _Volume(tensor.bits, unit[made], units, float(head[made] + work[made]), late)


@dataclass
class _Volumes:
    """capacity float64[S]: bits per second that a server's NICs carry in each direction."""

    exact: ExactModel
    capacity: FloatArray
    volumes: Sequence[_Volume]

    def add(self) -> None:
        levels = np.linspace(0.0, 1.0, _WINDOWS)
        early = np.array([v.early for v in self.volumes])
        late = np.array([v.late for v in self.volumes])
        some = self.large if self.large.any() else np.ones(len(early), dtype=bool)
        for s, rate in enumerate(self.capacity.tolist()):
            took = [self.exact.ticks(v.bits / rate if rate > 0 else math.inf) for v in self.volumes]
            for counts in (self.sends(s), self.receives(s)):
                for a in np.unique(np.quantile(early[some], levels, method="nearest")).tolist():
                    for b in np.unique(np.quantile(late[some], levels, method="nearest")).tolist():
                        inside = np.flatnonzero((early >= a) & (late >= b)).tolist()
                        self.fit(a, b, [(took[k], counts[k]) for k in inside if counts[k]])

    def fit(self, a: float, b: float, volumes: list[tuple[int, list[IntVar]]]) -> None:
        """volumes: ticks of each time that one of the literals is true."""
        around = self.exact.ticks(a) + self.exact.ticks(b)
        most = sum(ticks * len(literals) for ticks, literals in volumes)
        # Only where it would take half of the horizon if all of it were sent.
        if volumes and most + around > self.exact.horizon * 0.5:
            load: list[Any] = [ticks * one for ticks, literals in volumes for one in literals]
            self.exact.model.add(self.exact.step >= around + sum(load))

    @cached_property
    def large(self) -> BoolArray:
        """bool[k]: which volumes count for each server that reads them."""
        widest = max(float(self.capacity.max()), 1e-300)
        took = np.array([self.exact.ticks(v.bits / widest) for v in self.volumes])
        large: BoolArray = took >= _LARGE * self.exact.horizon
        return large

    def sends(self, server: int) -> list[list[IntVar]]:
        """By volume, the literals that count how often the server sends it."""
        return [
            list(self.goes[k][server].values()) if is_large else [self._leaves(volume, server)]
            for k, (volume, is_large) in enumerate(zip(self.volumes, self.large, strict=True))
        ]

    def receives(self, server: int) -> list[list[IntVar]]:
        """By volume, as `sends`; what is small counts nowhere."""
        return [
            [row[server] for s, row in self.goes[k].items() if s != server] if is_large else []
            for k, is_large in enumerate(self.large)
        ]

    @cached_property
    def goes(self) -> dict[int, dict[int, dict[int, IntVar]]]:
        """By large volume, sender and receiver: the literal that is true where it is sent so."""
        servers, place = range(len(self.capacity)), self.exact.place
        found: dict[int, dict[int, dict[int, IntVar]]] = {}
        for k in np.flatnonzero(self.large).tolist():
            volume = self.volumes[k]
            found[k] = {s: {} for s in servers}
            for s in servers:
                for t in (t for t in servers if t != s):
                    literal = found[k][s][t] = self.exact.model.new_bool_var("")
                    for unit in volume.units:
                        self.exact.model.add_bool_or(
                            ~place[volume.unit][s], ~place[unit][t], literal
                        )
        return found

    def _leaves(self, volume: _Volume, server: int) -> IntVar:
        """The literal that is true where the producer is on the server and some reader is not."""
        place = self.exact.place
        leaves = self.exact.model.new_bool_var("")
        for unit in volume.units:
            self.exact.model.add_bool_or(~place[volume.unit][server], place[unit][server], leaves)
        return leaves
