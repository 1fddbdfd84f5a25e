"""Placement methods of other people's papers as engines, one file each.

Each method decides by its own paper's view of the network; its placement is scored under the
problem's own model afterwards. docs/engine.md lists the methods. What several have in common is in
`shared`; the methods that are mixed-integer programs are in published/formulations.

Where the papers are silent:
- a transfer between two devices takes as long as it would alone (optimizer/engines/
  transfer_times.py);
- co-located operators go where the first of them goes (Celeritas, section 6.1), and a device takes
  no group that its memory has no room for (optimizer/engines/device_capacity.py);
- no method decides rates: rates follow the traffic, and the allocator improves them afterwards;
- a placement without an order of its own runs by list scheduling (schedulers/list_scheduling.py),
  as in the thesis' evaluation (section 5.2).
"""
