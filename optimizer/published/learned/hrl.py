"""Engine `hrl`: the hierarchical planner, a policy that groups operators and places the groups.

Mirhoseini, Goldie, Pham, Steiner, Le, Dean: "A hierarchical model for device placement" (ICLR
2018); "HRL" in Celeritas' tables 3 and 4.

Known from the papers that compare with it: a feed-forward network assigns operators to groups, and
an LSTM-based model places the groups (Celeritas, section 6.2.2; HSDAG, appendix B); the placement
is run, and its time is the reward; it begins with no strategy against exceeded memories but a large
penalty (Celeritas, section 3); it has five hours (6.2.2).

Publicly known of the paper itself: an operator is described by its type, its output shapes and the
numbers of up to six producers and six consumers; a group by counts of types, sums of shapes and the
groups that it is linked with; both networks learn from one reward, minus the square root of the
running time, by REINFORCE.

Chosen here: 64 groups, or as many as there are nodes, since our graphs have hundreds of nodes where
theirs have tens of thousands; a node that its group's device cannot run goes to the first device
that can; the sequence-to-sequence model and all else as for `colocrl` (colocrl.py).
"""

from __future__ import annotations

from placewire.optimizer.published.learned.settings import RecurrentSettings

ENGINE = "hrl"
SETTINGS = RecurrentSettings(groups=64)
