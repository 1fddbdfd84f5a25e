"""Engine `placeto`: a policy that goes from node to node and improves the placement, learned.

Addanki, Bojja Venkatakrishnan, Gupta, Mao, Alizadeh: "Placeto: learning generalizable device
placement algorithms for distributed machine learning" (NeurIPS 2019).

From the papers that compare with it: a graph network that learns features of any computation graph,
so that a policy serves other graphs untrained (HSDAG, section 3.3); node by node (HSDAG, appendix
B); a decision process on a simulator (Celeritas, section 2); merging beforehand of the operator of
lowest cost into a neighbour, to a target size (thesis, 2.3 and 5.3), which is reduction `placeto`.

From what is publicly known of the paper itself: an episode begins with a whole placement and visits
each node once; a node's features are its time, the size of its output, its device, whether it is
its turn and whether that has been; messages pass along the graph in both directions, with networks
of their own; a decision sees the node and pools of what lies before, behind and beside it; the
reward of a decision is the step that it saves; REINFORCE with a mean return per step of an episode
as the baseline.

Chosen here: an episode begins on the best single device, as the thesis' MCMC does; visits are in
topological order; times are given per device, since devices are unlike, and times and transfers in
mean times of a node; messages and pools are means, so that graphs of other sizes look alike; sizes,
rounds, learning rate and entropy (`settings.py`). The answer is the best placement that was tried.
"""

from __future__ import annotations

from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.learned.nodes import units
from placewire.optimizer.published.learned.placeto_network import PlacetoPolicy
from placewire.optimizer.published.learned.placeto_training import PlacetoTraining
from placewire.optimizer.published.learned.policy_file import PolicyFile, load_policy, save_policy
from placewire.optimizer.published.learned.settings import Learning, PlacetoSettings
from placewire.optimizer.published.learned.training import (
    arrays_of,
    conclusion,
    one_thread,
    run_training,
    seeded,
    take_arrays,
    trained_on,
)
from placewire.optimizer.published.learned.trials import Trials

ENGINE = "placeto"


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """settings.moves limits the placements of training: 0 applies a policy as it is.

    Raises InfeasibleError where a unit fits no device or no placement that was tried fits, and
    PolicyFileError.
    """
    trials = train(problem, settings, progress)
    return conclusion(ENGINE, problem, settings, trials, progress)


def train(
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None = None,
    placeto: PlacetoSettings | None = None,
) -> Trials:
    """What was tried, with the training curve; the policy is saved where that is asked for."""
    placeto = PlacetoSettings() if placeto is None else placeto
    learning, devices = Learning.of(settings.options), len(problem.cluster.devices)
    until = deadline(ENGINE, settings)
    nodes = units(problem)
    trials = Trials(problem, nodes, settings.moves, until)
    if not nodes.count:
        trials.cost(nodes.of_operator, 0, in_training=False)
        return trials
    held = None if learning.policy is None else load_policy(learning.policy, ENGINE, devices)
    with one_thread():
        with seeded(settings.seed):
            policy = PlacetoPolicy(2 * devices + 3, devices, placeto)
        if held is not None:
            take_arrays(policy, learning, held.arrays)
        training = PlacetoTraining(policy, nodes, trials, placeto, settings.seed)
        run_training(ENGINE, training, trials, settings, held, progress)
    if learning.save_policy is not None:
        trained = trained_on(problem, held, trials)
        file = PolicyFile(ENGINE, devices, {}, trained, arrays_of(policy))
        save_policy(file, learning.save_policy)
    return trials
