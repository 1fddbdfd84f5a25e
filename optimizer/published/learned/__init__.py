"""Engines that train a policy on the simulated steps of the placements that the policy proposes.

`hsdag.py`, `placeto.py`, `colocrl.py` and `hrl.py` are the engines. A policy's reward follows from
the step, simulated under the problem's own model and sharing with list scheduling, with a charge
for exceeded memories. Of all engines only these need torch, which is loaded when one of them is
asked for.

Common to all, where the papers are silent:
- a policy places co-location groups, and operators outside any; a device that cannot run such a
  unit, or whose memory cannot hold the unit's weights, has probability 0;
- the answer is the best placement that was tried, whatever the policy prefers in the end;
- training ends early when neither the best step nor an episode's mean improved for as many episodes
  as settings.py says (`patience`);
- torch runs on one thread, so that a seed gives the same answer on any number of cores.
"""
