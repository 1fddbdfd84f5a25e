"""Engine `placeto`: a learned policy that visits node by node and improves the placement.

Addanki, Bojja Venkatakrishnan, Gupta, Mao, Alizadeh: "Placeto: learning generalizable device
placement algorithms for distributed machine learning" (NeurIPS 2019).

Known from the papers that compare with it: a graph network learns features of any computation
graph, so that a policy serves other graphs untrained (HSDAG, section 3.3); it goes node by node
(HSDAG, appendix B); it is a decision process on a simulator (Celeritas, section 2); the operator of
lowest cost is merged into a neighbour beforehand, down to a target size (thesis, 2.3 and 5.3),
which is reduction `placeto`.

Publicly known of the paper itself: an episode begins with a whole placement and visits each node
once; a node's features are its time, the size of its output, its device, whether it is its turn and
whether it was visited; messages pass along the graph in both directions, each with networks of its
own; a decision sees the node and pools over the nodes before, behind and beside it; a decision's
reward is the step time that it saves; the baseline of REINFORCE is a mean return for each decision
of an episode.

Chosen here: an episode begins on the best single device, as the thesis' MCMC does; visits are in
topological order; times are given per device, since devices are unlike; times and transfers are in
mean times of a node; messages and pools are means, so that graphs of other sizes look alike; sizes,
rounds, learning rate and entropy (`settings.py`). The answer is the best placement that was tried.
"""

from __future__ import annotations

from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.learned.nodes import units
from placewire.optimizer.published.learned.placeto_network import PlacetoPolicy
from placewire.optimizer.published.learned.placeto_training import PlacetoTraining
from placewire.optimizer.published.learned.policy_file import PolicyFile
from placewire.optimizer.published.learned.settings import Learning, PlacetoSettings
from placewire.optimizer.published.learned.training import Begun, conclusion, train_policy
from placewire.optimizer.published.learned.trials import Trials

ENGINE = "placeto"


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """settings.moves limits the placements of training; with 0 a policy is applied untrained.

    Raises InfeasibleError where a unit fits no device or no placement that was tried fits, and
    PolicyFileError.
    """
    return conclusion(ENGINE, problem, settings, train(problem, settings, progress), progress)


def train(
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None = None,
    placeto: PlacetoSettings | None = None,
) -> Trials:
    """Returns the placements that were tried and the training curve. Saves the policy where
    settings.options name a file for it."""

    def begin(trials: Trials, learning: Learning, held: PolicyFile | None) -> Begun:
        devices = len(problem.cluster.devices)
        chosen = PlacetoSettings() if placeto is None else placeto
        policy = PlacetoPolicy(devices, chosen)
        return Begun(PlacetoTraining(policy, trials, settings.seed))

    return train_policy(ENGINE, problem, settings, progress, units, begin)
