"""Engines `colocrl` and `hrl`, which differ in their settings alone: features, and the way from
them to a training.

A node is a co-location group, or an operator outside any. It is described by the share of its
operators that are of each type, and by its largest output shape, as logarithms; a group by sums of
these and by the groups that it is linked with. Both policies learn a graph, and none of another.
"""

from __future__ import annotations

import numpy as np
import torch

from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.learned.features import features, vocabulary_of
from placewire.optimizer.published.learned.nodes import Nodes, units
from placewire.optimizer.published.learned.policy_file import PolicyFile
from placewire.optimizer.published.learned.recurrent_network import RecurrentPolicy
from placewire.optimizer.published.learned.recurrent_training import RecurrentTraining
from placewire.optimizer.published.learned.settings import Learning, RecurrentSettings
from placewire.optimizer.published.learned.training import Begun, conclusion, train_policy
from placewire.optimizer.published.learned.trials import Trials

# A node's producers and consumers that its own description names, of each the first so many.
_NEIGHBOURS = 6


def solve(
    engine: str,
    recurrent: RecurrentSettings,
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None = None,
) -> Solution:
    """settings.moves limits the placements of training.

    Raises InfeasibleError where a unit fits no device or no placement that was tried fits.
    """
    trials = train(engine, recurrent, problem, settings, progress)
    return conclusion(engine, problem, settings, trials, progress)


def train(
    engine: str,
    recurrent: RecurrentSettings,
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None = None,
) -> Trials:
    """Returns the placements that were tried and the training curve."""

    def begin(trials: Trials, _learning: Learning, _held: PolicyFile | None) -> Begun:
        graph, nodes = problem.graph, trials.nodes
        known = vocabulary_of(graph, nodes, without=("structure", "position"))
        rows = features(graph, nodes, known, trials.until)
        inputs = np.hstack([rows, neighbours(nodes).astype(np.float32)])
        groups = min(recurrent.groups or nodes.count, nodes.count)
        policy = RecurrentPolicy(
            rows.shape[1], groups, len(problem.cluster.devices), inputs.shape[1], recurrent
        )
        given = torch.from_numpy(rows), torch.from_numpy(inputs)
        return Begun(RecurrentTraining(policy, *given, groups, trials, settings.seed))

    return train_policy(engine, problem, settings, progress, units, begin)


def neighbours(nodes: Nodes) -> FloatArray:
    """float64[N, 2 * 6]: where in the order of nodes, from 0 to 1, the first six producers and the
    first six consumers of each node are, and -1 where it has fewer."""
    found = np.full((nodes.count, 2 * _NEIGHBOURS), -1.0)
    seen = np.zeros((nodes.count, 2), dtype=np.int64)
    most = max(nodes.count - 1, 1)
    for source, target in zip(nodes.source.tolist(), nodes.target.tolist(), strict=True):
        for side, (node, other) in enumerate(((target, source), (source, target))):
            if seen[node, side] < _NEIGHBOURS:
                found[node, side * _NEIGHBOURS + seen[node, side]] = other / most
                seen[node, side] += 1
    return found
