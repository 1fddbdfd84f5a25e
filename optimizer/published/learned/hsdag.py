"""Engine `hsdag`: a policy that groups operators and chooses devices, learned by REINFORCE.

Duan et al.: "A structure-aware framework for learning device placements on computation graphs"
(NeurIPS 2024). Chains become nodes (appendix G; `nodes.chained_units`); features of nodes (section
2.3, `features.py`); an MLP and graph convolutions embed them, edges are scored, every node keeps
its strongest edge, groups are what then hangs together (2.4, `hsdag_network.py`, `parsing.py`); an
MLP gives each group's device; REINFORCE with Adam (2.5, `hsdag_training.py`). Settings are those of
table 4 (`settings.py`); the ablations of 3.4 leave out features.

The paper's reward is a measured inference; here it is 1 / simulated step. Where it is silent or can
be read in two ways:
- convolutions and neighbours see edges in both directions, as (15) has them, not only (6)'s A;
- a placement's state is the nodes' embeddings, to which those of their groups are added before the
  next of an episode's placements; they are scaled to one length, or 20 sums would overflow;
- a group's embedding is the mean of its nodes', each weighed by the score of the edge that it kept
  (Graph Parsing Networks do so too): through that the scores are learned;
- gamma of (14) is 0.99, and r is the graph's time on one device over the step, so that it has no
  unit; no baseline is taken from it, as in (14), so that what was tried becomes likelier, and what
  is fast more so;
- the MLP that chooses devices has as many layers as the one that scores edges;
- an edge that would join what no device can run or hold together is passed over;
- placements run by list scheduling, and the answer is the best that was tried.
"""

from __future__ import annotations

from dataclasses import asdict

import torch

from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.learned.features import (
    Vocabulary,
    features,
    unknown_types,
    vocabulary_from_json,
    vocabulary_of,
)
from placewire.optimizer.published.learned.hsdag_network import HsdagPolicy
from placewire.optimizer.published.learned.hsdag_training import HsdagTraining
from placewire.optimizer.published.learned.nodes import Nodes, chained_units
from placewire.optimizer.published.learned.policy_file import (
    PolicyFile,
    load_policy,
    not_a_policy,
    save_policy,
)
from placewire.optimizer.published.learned.settings import HsdagSettings, Learning
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

ENGINE = "hsdag"


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """settings.moves limits the placements of training: 0 applies a policy as it is.

    Raises InfeasibleError where a node fits no device or no placement that was tried fits,
    PolicyFileError, and OutOfTimeError where the features take longer than there is.
    """
    trials = train(problem, settings, progress)
    return conclusion(ENGINE, problem, settings, trials, progress)


def train(
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None = None,
    hsdag: HsdagSettings | None = None,
) -> Trials:
    """What was tried, with the training curve; the policy is saved where that is asked for."""
    hsdag = HsdagSettings() if hsdag is None else hsdag
    learning, devices = Learning.of(settings.options), len(problem.cluster.devices)
    until = deadline(ENGINE, settings)
    nodes = chained_units(problem)
    trials = Trials(problem, nodes, settings.moves, until)
    if not nodes.count:
        trials.cost(nodes.of_operator, 0, in_training=False)
        return trials
    held = None if learning.policy is None else load_policy(learning.policy, ENGINE, devices)
    vocabulary = _vocabulary(problem, nodes, learning, held)
    rows = torch.from_numpy(features(problem.graph, nodes, vocabulary, until))
    with one_thread():
        with seeded(settings.seed):
            policy = HsdagPolicy(vocabulary.columns, devices, hsdag)
        if held is not None:
            take_arrays(policy, learning, held.arrays)
        training = HsdagTraining(policy, nodes, rows, trials, hsdag, settings.seed)
        unseen = unknown_types(problem.graph, vocabulary)
        words = f"; {unseen} of {problem.graph.operator_count} operators have types unseen"
        run_training(ENGINE, training, trials, settings, held, progress, words)
    if learning.save_policy is not None:
        trained = trained_on(problem, held, trials)
        facts = {"vocabulary": asdict(vocabulary)}
        file = PolicyFile(ENGINE, devices, facts, trained, arrays_of(policy))
        save_policy(file, learning.save_policy)
    return trials


def _vocabulary(
    problem: Problem, nodes: Nodes, learning: Learning, held: PolicyFile | None
) -> Vocabulary:
    if held is None:
        return vocabulary_of(problem.graph, nodes, learning.without)
    assert learning.policy is not None
    try:
        return vocabulary_from_json(held.facts["vocabulary"])
    except (KeyError, TypeError, ValueError) as error:
        raise not_a_policy(learning.policy, ENGINE) from error
