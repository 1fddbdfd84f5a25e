"""Sharing `strict`: each pair of servers has a rate of its own on each rail, which is its cap.

The rates are the decision. Each destination has a queue whose minimum and maximum are the pair's
rate. Promised is every pair's rate on every rail, no more and no less.
"""

from __future__ import annotations

from typing import ClassVar

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.nics import Capacity, even_rates
from placewire.optimizer.network.sharing import Discipline, SharingPolicy


class Strict(SharingPolicy):
    name: ClassVar[SharingName] = "strict"
    discipline = Discipline.FIRST_COME
    decides_rates = True
    caps_pairs = True

    def expected_pair_rates(self, usable: Capacity) -> FloatArray:
        return even_rates(usable)

    def rates_in_force(self, usable: Capacity, decided: FloatArray | None) -> FloatArray:
        assert decided is not None
        return decided
