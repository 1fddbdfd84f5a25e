"""A lab: a cluster on one machine, with a namespace per server, real Open vSwitch and real agents.

All files are under /run/placewire/lab/NAME, all namespaces are named pw-NAME-*; nothing is made in
the root namespace. Everything is recorded before it is made, so that `lab_down` removes all of it
and nothing else, also after a crash.
"""

from __future__ import annotations

from placewire.controller.lab.down import lab_down
from placewire.controller.lab.lab import Lab, find_lab
from placewire.controller.lab.lacks import refuse_what_a_lab_lacks
from placewire.controller.lab.record import recorded_names as lab_names
from placewire.controller.lab.up import lab_up

__all__ = ["Lab", "find_lab", "lab_down", "lab_names", "lab_up", "refuse_what_a_lab_lacks"]
