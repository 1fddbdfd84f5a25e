"""A proposal: what `apply` would do, as it is shown before anything is touched."""

from __future__ import annotations

from dataclasses import dataclass

from placewire.agent.contract.messages import Previewed
from placewire.agent.contract.state import DesiredState
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.traffic import TrafficDecision


@dataclass(frozen=True)
class Proposal:
    decision: PlacementDecision | TrafficDecision
    desired: dict[str, DesiredState]
    previewed: dict[str, Previewed]
