"""Placeto's episodes of decisions on one node each, and the policy's updates by REINFORCE, with a
baseline for every decision of an episode."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.engines.units import typical_transfer_seconds
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.learned.layers import masked
from placewire.optimizer.published.learned.nodes import Nodes
from placewire.optimizer.published.learned.placeto_network import (
    PlacetoPolicy,
    before_and_behind,
    heard_from,
    pools_of,
)
from placewire.optimizer.published.learned.trials import Trials

# An update takes at most so many decisions times nodes through the networks at once.
_ROWS = 20_000
# A step counts as at most so many times the start's, also one that never ends.
_WORST = 100.0


@dataclass(frozen=True)
class Transition:
    """One decision. device int64[N]: the placement before it; choice: the device that the node
    gets; reward: the seconds that it saves, as a share of the start's step."""

    device: IntArray
    node: int
    choice: int
    reward: float


def node_costs(problem: Problem, nodes: Nodes) -> NDArray[np.float32]:
    """float32[N, D + 1]: log(1 + t), where t is a node's time on each device, and last the transfer
    of its outputs, in units of a node's mean time."""
    count, devices = nodes.able.shape
    taken = np.zeros((count, devices + 1))
    runs = np.where(np.isfinite(problem.seconds), problem.seconds, 0.0)
    np.add.at(taken[:, :devices], nodes.of_operator, runs)
    producer = nodes.of_operator[problem.graph.tensor_producer]
    np.add.at(taken[:, devices], producer, typical_transfer_seconds(problem))
    mean = taken[:, :devices].mean() if count else 1.0
    return np.log1p(taken / max(float(mean), 1e-12)).astype(np.float32)


class PlacetoTraining:
    """Trains on one graph with placements that `trials` tries."""

    def __init__(self, policy: PlacetoPolicy, trials: Trials, seed: int) -> None:
        problem, nodes = trials.search.problem, trials.nodes
        self.policy, self.trials, self.nodes = policy, trials, nodes
        self.settings = policy.settings
        self.costs = node_costs(problem, nodes)
        self.heard = heard_from(nodes)
        self.pools = pools_of(before_and_behind(problem.graph, nodes))
        self.movable = np.flatnonzero(nodes.able.sum(axis=1) > 1)
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=policy.settings.learning_rate)
        self.start, self.start_seconds = self._start()
        self._returned = np.zeros(len(self.movable))
        self._episodes = 0

    @torch.no_grad()
    def episode(self, *, explores: bool) -> list[Transition]:
        """From the start placement, decides every movable node once, in topological order, or as
        many as there is time for. Without exploring, the likeliest devices are chosen."""
        device, seconds = self.start, self.start_seconds
        made: list[Transition] = []
        for node in self.movable.tolist():
            if self.trials.until.is_over or (explores and self.trials.is_over):
                break
            odds = self._odds([Transition(device, node, -1, 0.0)])
            choice = int(odds.argmax())
            if explores:
                chances = torch.softmax(odds, dim=1)
                choice = int(torch.multinomial(chances, 1, generator=self.generator))
            after = device.copy()
            after[node] = choice
            took = self.trials.cost(after, len(self.movable), in_training=explores)
            took = min(took, _WORST * self.start_seconds)
            reward = (seconds - took) / max(self.start_seconds, 1e-12)
            made.append(Transition(device, node, choice, reward))
            device, seconds = after, took
        return made

    def update(self, decisions: list[Transition]) -> float:
        """Takes one step of Adam and returns the loss before it; after a part of an episode does
        nothing and returns nan."""
        if len(decisions) < len(self.movable):
            return math.nan
        returns = np.cumsum([d.reward for d in decisions][::-1])[::-1]
        baseline = self._returned / max(self._episodes, 1)
        self._returned, self._episodes = self._returned + returns, self._episodes + 1
        gained = returns - baseline
        worth = torch.from_numpy((gained / (gained.std() + 1e-8)).astype(np.float32))
        part = 1.0 - len(self.trials.curve) / self.settings.max_episodes
        entropy_weight = self.settings.entropy * max(part, 0.0)
        size = max(1, _ROWS // max(self.nodes.count, 1))
        self.optimizer.zero_grad()
        loss = 0.0
        for k in range(0, len(decisions), size):
            if self.trials.until.is_over:
                return math.nan
            held = decisions[k : k + size]
            logs = torch.log_softmax(self._odds(held), dim=1)
            choice = torch.tensor([d.choice for d in held])
            chosen = logs.gather(1, choice[:, None]).squeeze(1)
            entropy = -(logs.exp() * logs.masked_fill(logs.isinf(), 0.0)).sum(dim=1)
            part_loss = -(chosen * worth[k : k + size] + entropy_weight * entropy).sum()
            part_loss = part_loss / len(decisions)
            part_loss.backward()
            loss += float(part_loss.detach())
        self.optimizer.step()
        return loss

    def _odds(self, decisions: list[Transition]) -> Tensor:
        """float[T, D]: the logits of each decision, -inf for devices that cannot have the node."""
        current = np.array([d.node for d in decisions])
        features = np.stack([self._features(d) for d in decisions])
        logits = self.policy(
            torch.from_numpy(features),
            torch.from_numpy(current),
            self.heard,
            torch.from_numpy(self.pools[current]),
        )
        return masked(logits, self.nodes.able[current])

    def _features(self, decision: Transition) -> NDArray[np.float32]:
        """float32[N, 2 D + 3]: a node's costs, the device that it is on, whether it is its turn,
        and whether it was visited."""
        count, devices = self.nodes.able.shape
        rows = np.zeros((count, 2 * devices + 3), dtype=np.float32)
        rows[:, : devices + 1] = self.costs
        rows[np.arange(count), devices + 1 + decision.device] = 1.0
        rows[decision.node, -2] = 1.0
        rows[: decision.node, -1] = 1.0  # nodes are visited in the order of their numbers
        return rows

    def _start(self) -> tuple[IntArray, float]:
        """Returns the best placement with all nodes on one device, and its seconds. Nodes that this
        device cannot run are on the first that can."""
        able = self.nodes.able
        starts = [
            np.where(able[:, d], d, able.argmax(axis=1)).astype(np.int64)
            for d in range(able.shape[1])
        ]
        costs = [self.trials.cost(device, 1, in_training=False) for device in starts]
        best = int(np.argmin(costs))
        return starts[best], costs[best] if math.isfinite(costs[best]) else 1.0
