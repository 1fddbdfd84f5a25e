"""Placement policies that are trained by the steps of the placements that they propose.

`hsdag.py` and `placeto.py` are the engines; a policy's reward is the simulated step under the
problem's own model and sharing, by list scheduling, with a charge for what a memory lacks. torch is
loaded when one of them is asked for, and only here among the engines.

Common to both, where the papers are silent:
- what a policy places are co-location groups and operators outside any, as units; a device that
  cannot run a unit, or whose memory has no room for its weights, has probability 0;
- the answer is the best placement that was tried, whatever the policy came to;
- training ends early where neither the best step nor an episode's mean got better for as long as
  settings.py says;
- one thread of torch, so that the same seed gives the same answer however many cores there are.
"""
