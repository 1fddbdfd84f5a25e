"""Reductions of published papers, one file each; its `Reduction` names paper and section.

The reductions of the thesis and its ancestor QuickP (iterate.py, rank.py, thresholds.py), of
Celeritas, Moirai (gcof.py) and HSDAG follow their own papers. Those of ColocRL, Placeto, SpotLight
and Pesto follow what the thesis and QuickP, which compare with them, say of them; each file says
what is left open, and what was chosen.

Common to all, where the papers are silent: a reduction makes no cycle in the whole graph, does not
unite two co-location keys of the graph (Celeritas' clusters excepted), and ties nothing together
that no device can hold or run.
"""
