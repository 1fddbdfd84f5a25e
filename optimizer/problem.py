"""One placement problem: a graph, a cluster, and the model under which a placement is scored."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import (
    ENTITLED_FRACTION,
    Backend,
    Feature,
    Model,
    SchedulerName,
    Sharing,
    SolverName,
)

# Below this size a message is not cut over several rails: it travels on one.
CUT_THRESHOLD_BYTES = 64 * 1024
# Every used pair keeps this part of the NIC for the acknowledgements of the other direction.
FLOOR_FRACTION = 0.02
# Background traffic on a NIC is taken to be this many flows in each direction.
NEIGHBOUR_FLOWS = 8


class InfeasibleError(ValueError):
    """No placement can exist: says which limit forbids it and what would lift it."""


@dataclass(frozen=True)
class Problem:
    """entitled: the part of each NIC that the shaped network keeps for the job against the
    cluster's background traffic; unshaped sharing keeps none."""

    graph: OperatorGraph
    cluster: Cluster
    sharing: Sharing = "strict"
    model: Model = "contended"
    backend: Backend = "gloo"
    entitled: float = ENTITLED_FRACTION

    def __post_init__(self) -> None:
        missing = {d.type for d in self.cluster.devices} - set(self.graph.device_types)
        if missing:
            raise InfeasibleError(
                f"the graph has no operator times for device type {min(missing)!r} (it has "
                f"{', '.join(self.graph.device_types) or 'none'}); profile it on such a device: "
                "seconds are never borrowed between types"
            )

    @cached_property
    def usable_nic_rates(self) -> NDArray[np.float64]:
        """float64[S, R]: what the job may count on of each NIC: all that others leave, and at
        least what it is entitled to. Nothing is kept for it under unshaped sharing: there it is
        what one transfer gets beside the neighbour's flows, and several may get more together."""
        rates = self.cluster.nic_rates
        fair = 1.0 / (1 + NEIGHBOUR_FLOWS)
        least = fair if self.sharing == "unshaped" else self.entitled
        return np.maximum(rates - self.cluster.background, least * rates)

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """float64[n, D]: time of each operator on each device."""
        column = {t: k for k, t in enumerate(self.graph.device_types)}
        return self.graph.seconds[:, [column[d.type] for d in self.cluster.devices]]


@dataclass(frozen=True)
class Learning:
    """What the learned engines read and write beside the placement.

    policy: a trained one to begin with; save_policy: where the policy goes in the end; curve: where
    the training curve goes, .csv or .png; without: features that hsdag's policy leaves out.
    """

    policy: Path | None = None
    save_policy: Path | None = None
    curve: Path | None = None
    without: tuple[Feature, ...] = ()


@dataclass(frozen=True)
class SolveSettings:
    """gap: stop when (step - bound) / step is at most this. The same seed with a move budget
    (`moves`) gives the same answer; with a time limit alone it need not. certify: the part of the
    time that may go into a stronger bound; None: by the graph's size. solver: of the published
    formulations. scheduler: gives the order of what the engine placed. learning: of the learned
    engines."""

    gap: float = 0.05
    time_limit_seconds: float = 60.0
    seed: int = 0
    moves: int | None = None
    certify: float | None = None
    solver: SolverName = "auto"
    scheduler: SchedulerName = "own"
    learning: Learning = Learning()
