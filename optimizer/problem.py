"""One placement problem: a graph, a cluster, and the model under which a placement is scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import DEFAULT_FLOOR, DEFAULT_SHARING, Backend, Model, SharingName
from placewire.optimizer.network import transfers
from placewire.optimizer.network.nics import (
    Capacity,
    RateLimits,
    capacity_of,
    least_pair_rates,
    network_limits,
    usable_rates,
    widest_rates,
)
from placewire.optimizer.network.sharing import Discipline, SharingPolicy
from placewire.optimizer.network.sharings import SHARINGS


class InfeasibleError(ValueError):
    """No placement exists, or none was found: the message names the limit and what lifts it."""


@dataclass(frozen=True)
class Problem:
    """n operators, D devices, S servers, R rails. floor: the part of each NIC that a shaped network
    keeps for the job against the cluster's background traffic. shares_messages: whether a search
    counts tensors in one message where its placement will have them so. given_rates: float64[S, S,
    R], those of pairs of servers, where the sharing decides rates and another placement has decided
    them already."""

    graph: OperatorGraph
    cluster: Cluster
    sharing: SharingName = DEFAULT_SHARING
    model: Model = "contended"
    backend: Backend = "gloo"
    floor: float = DEFAULT_FLOOR
    shares_messages: bool = False
    given_rates: FloatArray | None = None

    def __post_init__(self) -> None:
        missing = {d.type for d in self.cluster.devices} - set(self.graph.device_types)
        if missing:
            raise InfeasibleError(
                f"the graph has no operator times for device type {min(missing)!r}, only for: "
                f"{', '.join(self.graph.device_types) or 'none'}; profile it on such a device, as "
                "times are never borrowed between types"
            )

    @cached_property
    def seconds(self) -> FloatArray:
        """float64[n, D]: time of each operator on each device, inf where it cannot run."""
        return self.graph.seconds[:, self._columns]

    @cached_property
    def copy_seconds_per_byte(self) -> FloatArray:
        """float64[D]: how long each device takes to copy a byte of its memory."""
        return self.graph.copy_seconds_per_byte[self._columns]

    @cached_property
    def _columns(self) -> list[int]:
        """For each device, the column of its type in the graph's times."""
        column = {t: k for k, t in enumerate(self.graph.device_types)}
        return [column[d.type] for d in self.cluster.devices]

    @property
    def policy(self) -> SharingPolicy:
        return SHARINGS[self.sharing]

    @property
    def discipline(self) -> Discipline:
        """How concurrent transfers over the rails affect each other here."""
        if self.model == "thesis":
            return Discipline.NEVER_MEET
        return Discipline.FIRST_COME if self.model == "msr" else self.policy.discipline

    @property
    def decides_rates(self) -> bool:
        """Whether a solution includes a rate for each pair of servers."""
        return self._has_decided_rates and self.given_rates is None

    @property
    def _has_decided_rates(self) -> bool:
        return self.policy.decides_rates and self.model != "msr"

    @cached_property
    def usable_nic_rates(self) -> FloatArray:
        """float64[S, R]: the rate that the job may count on at each NIC."""
        return usable_rates(self.cluster, self.policy.kept_fraction(self.floor))

    @cached_property
    def usable(self) -> Capacity:
        """What the job may count on of the network."""
        return capacity_of(self.cluster, self.usable_nic_rates)

    @cached_property
    def limits(self) -> RateLimits:
        """The limits on decided rates. The thesis' own model limits no receiver (3.7)."""
        receiving = self.model != "thesis" or self.policy.always_limits_receiving
        return network_limits(self.usable, receiving=receiving)

    @cached_property
    def paths(self) -> transfers.Paths:
        """The paths between devices that use no NIC."""
        return transfers.paths_past_the_nics(self.cluster, self.model)

    @property
    def cuts_equally(self) -> bool:
        """Whether a large message is cut into equal parts over the rails that serve its pair."""
        return transfers.cuts_equally(self.backend, self.model)

    @property
    def message_seconds(self) -> float:
        """What a message takes of each of its two devices: nothing under the models of papers,
        which do not have it."""
        return self.cluster.message_seconds if self.model == "contended" else 0.0

    @property
    def message_seconds_per_byte(self) -> float:
        """As message_seconds, for each byte of a message."""
        return self.cluster.message_seconds_per_byte if self.model == "contended" else 0.0

    @cached_property
    def worthwhile_rates(self) -> FloatArray:
        """float64[S, S, R]: what each pair would get alone on the rails that serve it."""
        widest = widest_rates(self.usable)
        return transfers.worthwhile_rates(widest, cuts_equally=self.cuts_equally)

    @cached_property
    def least_rates(self) -> FloatArray:
        """float64[S, S, R]: what a pair in use keeps at least, in both directions."""
        return least_pair_rates(self.usable, self.worthwhile_rates)

    def alone(self, rates: FloatArray) -> transfers.Paths:
        """The paths of a transfer that meets no other, with rates float64[S, S, R] on the rails."""
        return transfers.alone(self.cluster, self.paths, rates, cuts_equally=self.cuts_equally)

    def decision(self, rates: FloatArray | None) -> FloatArray:
        """The decided rates as contiguous float64[S, S, R], R at least 1.

        Raises ValueError where they are missing, or not of this cluster's shape."""
        if rates is None:
            raise ValueError(
                f"{self.sharing} sharing needs rates, float64[servers, servers, rails]"
            )
        servers, rails = self.cluster.nic_rates.shape
        if rates.shape[:2] != (servers, servers) or rates.shape[2] not in (rails, max(rails, 1)):
            raise ValueError(
                f"rates have shape {rates.shape}, expected {(servers, servers, rails)}"
            )
        return transfers.with_a_rail(np.ascontiguousarray(rates, dtype=np.float64))

    def rates_in_force(self, rates: FloatArray | None) -> FloatArray:
        """float64[S, S, R], R at least 1: messages are cut and, at most, paced by these rates.

        rates float64[S, S, R] are the decided ones, and ignored unless decides_rates. All results
        are 0 under the model `msr`, which has no NICs. Raises ValueError where rates are missing.
        """
        usable = self.usable.with_a_rail()
        if self.model == "msr":
            servers, rails = usable.nics.shape
            return np.zeros((servers, servers, rails))
        return self.policy.rates_in_force(usable, self.decided(rates))

    def decided(self, rates: FloatArray | None) -> FloatArray | None:
        """The decided rates float64[S, S, R], R at least 1: those of the solution, or the given
        ones; None where the sharing decides none. Raises ValueError where they are missing."""
        if not self._has_decided_rates:
            return None
        return self.decision(rates if self.given_rates is None else self.given_rates)


@dataclass(frozen=True)
class SolveSettings:
    """gap: the search stops when (step - bound) / step is at most this. moves: a budget of moves,
    with which the same seed gives the same answer; with a time limit alone it need not. certify:
    the part of the time that may go into a stronger bound; None: by the graph's size. scheduler:
    the method that orders the placed operators. options: the engine's own options, by name."""

    gap: float = 0.05
    time_limit_seconds: float = 60.0
    seed: int = 0
    moves: int | None = None
    certify: float | None = None
    scheduler: str = "own"
    options: Mapping[str, Any] = field(default_factory=dict)

    def part(self, share: float) -> SolveSettings:
        """The same settings with this share of the time and of the moves."""
        moves = None if self.moves is None else max(1, int(self.moves * share))
        return replace(self, moves=moves, time_limit_seconds=self.time_limit_seconds * share)
