"""Engine `hsdag`: a policy that groups operators and chooses devices, learned by REINFORCE.

Duan et al.: "A structure-aware framework for learning device placements on computation graphs"
(NeurIPS 2024). Chains become nodes (appendix G, `nodes.chained_units`), which have features
(section 2.3, `features.py`). An MLP and graph convolutions embed the nodes, another MLP scores the
edges, every node keeps its strongest edge, and nodes that kept edges connect are one group (2.4,
`hsdag_network.py`, `parsing.py`). A third MLP chooses each group's device, and REINFORCE with Adam
trains all of them (2.5, `hsdag_training.py`). Settings are those of table 4 (`settings.py`); the
ablations of 3.4 leave out features.

The paper's reward is a measured inference; here it is 1 / simulated step. Where the paper is silent
or can be read in two ways, this was chosen:
- convolutions and neighbourhoods use edges in both directions, as (15) does, not only the A of (6);
- A' of (11) counts edges between groups: more than one is one edge, and those within a group, the
  diagonal, are left out, as link_ignore_self_loop of table 4 has it;
- a round embeds, parses and places the graph that the round before parsed. Every round at least
  halves a connected graph, so that few of an episode's 20 rounds would have anything to parse.
  Where the parsed graph has no edge, or nothing was joined, the next round takes the graph as
  given again, with the embeddings renewed: the paper does not say what follows then;
- the embedding of each node of the graph as given gets that of its group added after every round,
  and is scaled to one length, or 20 such sums would overflow; a node of a parsed graph has the mean
  of its nodes' embeddings;
- a group's embedding is the mean of its nodes' embeddings, each weighted by the score of the edge
  that the node kept (as in Graph Parsing Networks); through these weights the scores are learned;
- gamma of (14) is 0.99; r is the sum of the operators' times, each on its slowest device, divided
  by the step, so that it has no unit. As in (14) no baseline is subtracted, so that every placement
  that was tried becomes likelier, and a fast one more so;
- the MLP that chooses devices has as many layers as the one that scores edges;
- an edge joins no two groups that no device can run or hold together;
- list scheduling orders the operators, and the answer is the best placement that was tried.
"""

from __future__ import annotations

from dataclasses import asdict

import torch

from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
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
from placewire.optimizer.published.learned.policy_file import PolicyFile, not_a_policy
from placewire.optimizer.published.learned.settings import HsdagSettings, Learning
from placewire.optimizer.published.learned.training import Begun, conclusion, train_policy
from placewire.optimizer.published.learned.trials import Trials

ENGINE = "hsdag"


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """settings.moves limits the placements of training; with 0 a policy is applied untrained.

    Raises InfeasibleError where a node fits no device or no placement that was tried fits,
    PolicyFileError, and OutOfTimeError where computing the features exceeds the time limit.
    """
    return conclusion(ENGINE, problem, settings, train(problem, settings, progress), progress)


def train(
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None = None,
    hsdag: HsdagSettings | None = None,
) -> Trials:
    """Returns the placements that were tried and the training curve. Saves the policy where
    settings.options name a file for it."""

    def begin(trials: Trials, learning: Learning, held: PolicyFile | None) -> Begun:
        graph, nodes = problem.graph, trials.nodes
        vocabulary = _vocabulary(problem, nodes, learning, held)
        rows = torch.from_numpy(features(graph, nodes, vocabulary, trials.until))
        chosen = HsdagSettings() if hsdag is None else hsdag
        policy = HsdagPolicy(vocabulary.columns, len(problem.cluster.devices), chosen)
        return Begun(
            HsdagTraining(policy, rows, trials, settings.seed),
            facts={"vocabulary": asdict(vocabulary)},
            unseen=f"; {unknown_types(graph, vocabulary)} of {graph.operator_count} operators have "
            "types that the policy was not trained with",
        )

    return train_policy(ENGINE, problem, settings, progress, chained_units, begin)


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
