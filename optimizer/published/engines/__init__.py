"""Placement methods of other people's papers as engines, one file each.

Each keeps to its paper: it decides by its own view of the network, and the placement is scored
under the problem's own model afterwards. docs/engine.md lists them; catalog.py says where each
comes from and what it can take. What several have in common is in `shared`; the methods that are
mixed-integer programs are in `formulations`.

Common to all of them, where the papers are silent:
- a transfer between two devices takes what it would take alone (shared/transfer_times.py);
- co-located operators go where the first of them goes (Celeritas, section 6.1), and a device takes
  no group that its memory has no room for (shared/rooms.py);
- none decides rates: they follow the traffic, and the allocator improves them afterwards;
- a method that decides no order runs its placement by list scheduling (list_scheduling.py), as the
  thesis' evaluation does (section 5.1).
"""
