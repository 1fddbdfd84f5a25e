"""Sharing `even`: like `strict`, but each NIC is split evenly over the other servers on its rail,
and each uplink of a pod over the pairs of servers that it joins.

Nothing is decided: the rates follow from the cluster. Queues and promises are those of `strict`.
"""

from __future__ import annotations

from typing import ClassVar

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.names import SharingName
from placewire.optimizer.network.nics import Capacity, even_rates
from placewire.optimizer.network.sharing import Discipline, SharingPolicy


class Even(SharingPolicy):
    name: ClassVar[SharingName] = "even"
    discipline = Discipline.FIRST_COME
    caps_pairs = True
    why_this_rate = "as much as every other pair"

    def most_pair_rates(self, most: Capacity) -> FloatArray:
        return even_rates(most)

    def expected_pair_rates(self, usable: Capacity) -> FloatArray:
        return even_rates(usable)

    def rates_in_force(self, usable: Capacity, decided: FloatArray | None) -> FloatArray:
        return even_rates(usable)

    def recorded_rates(self, usable: Capacity, decided: FloatArray | None) -> FloatArray:
        return even_rates(usable)
