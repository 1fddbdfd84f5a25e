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

from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.learned.recurrent import train_recurrent
from placewire.optimizer.published.learned.settings import RecurrentSettings
from placewire.optimizer.published.learned.training import conclusion
from placewire.optimizer.published.learned.trials import Trials

ENGINE = "hrl"
GROUPS = 64


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """settings.moves limits the placements of training.

    Raises InfeasibleError where a unit fits no device or no placement that was tried fits.
    """
    return conclusion(ENGINE, problem, settings, train(problem, settings, progress), progress)


def train(
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None = None,
    recurrent: RecurrentSettings | None = None,
) -> Trials:
    """Returns the placements that were tried and the training curve."""
    chosen = RecurrentSettings(groups=GROUPS) if recurrent is None else recurrent
    return train_recurrent(ENGINE, problem, settings, progress, chosen)
