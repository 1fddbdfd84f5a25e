"""Lower bounds on the step time over every placement, order and admissible rates.

They hold for the graph as given, under every model and sharing.
"""

from placewire.optimizer.bounds.bound import Bound
from placewire.optimizer.bounds.quick import lower_bound
from placewire.optimizer.bounds.strong import strong_bound

__all__ = ["Bound", "lower_bound", "strong_bound"]
