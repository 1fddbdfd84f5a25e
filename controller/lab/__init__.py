"""A cluster on one machine: a network namespace per server, real Open vSwitch, real agents.

Everything lies under /run/placewire/lab/NAME and in namespaces named pw-NAME-*; nothing is made in
the root namespace. What is made is recorded first, so that `lab_down` removes all of it, also after
a crash, and nothing else.
"""

from __future__ import annotations

from placewire.controller.lab.down import lab_down
from placewire.controller.lab.lab import Lab, find_lab, lab_names
from placewire.controller.lab.up import lab_up

__all__ = ["Lab", "find_lab", "lab_down", "lab_names", "lab_up"]
