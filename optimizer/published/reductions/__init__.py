"""Reductions of other people's papers, one file each; catalog.py says where each comes from.

Four papers describe their own: the thesis and its ancestor QuickP (iterate.py, rank.py,
thresholds.py), Celeritas, Moirai (gcof.py), HSDAG. Those of ColocRL, Placeto, SpotLight and Pesto
are followed as far as the thesis and QuickP describe them, which compare with them; each file says
what they leave open, and what was chosen.

Common to all of them, where the papers are silent: no cycle on the whole graph, no two co-location
keys of the graph made one (Celeritas' clusters excepted), and nothing tied together that no device
can hold or run.
"""
