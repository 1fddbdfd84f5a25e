"""HSDAG's episodes of proposed placements, and the policy's updates by REINFORCE (section 2.5)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from placewire.optimizer.arrays import BoolArray, IntArray
from placewire.optimizer.published.learned.hsdag_network import (
    HsdagPolicy,
    masked,
    normalised_adjacency,
    pooled,
    renewed,
)
from placewire.optimizer.published.learned.parsing import groups, strongest_edges
from placewire.optimizer.published.learned.trials import Trials

# An update takes at most so many placements times nodes through the networks at once.
_ROWS = 40_000


@dataclass(frozen=True)
class Proposal:
    """One placement. state float[1, N, H]: the nodes' state before it, None for the first state,
    which is made of the features; strongest int64[N]: the edge that each node kept, -1 for none;
    group int64[N]; able bool[groups, D]; choice int64[groups]: the devices."""

    state: Tensor | None
    strongest: IntArray
    group: IntArray
    able: BoolArray
    choice: IntArray
    reward: float


class HsdagTraining:
    """Trains on one graph, features float[N, columns], with placements that `trials` tries."""

    def __init__(self, policy: HsdagPolicy, features: Tensor, trials: Trials, seed: int) -> None:
        self.policy, self.features, self.trials = policy, features, trials
        self.settings = policy.settings
        self.nodes = nodes = trials.nodes
        self.memory_bytes = trials.search.problem.cluster.memory_bytes
        self.adjacency = normalised_adjacency(nodes)
        self.source, self.target = torch.from_numpy(nodes.source), torch.from_numpy(nodes.target)
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=policy.settings.learning_rate)

    def episode(self, *, explores: bool) -> list[Proposal]:
        """Proposes update_timestep placements, or as many as there is time for. Without exploring,
        all edges are kept, the likeliest devices are chosen, and only the time limit counts."""
        made: list[Proposal] = []
        state: Tensor | None = None
        for _ in range(self.settings.update_timestep):
            if (explores and self.trials.is_over) or (made and self.trials.until.is_over):
                break
            proposal, state = self._propose(state, explores)
            made.append(proposal)
        return made

    @torch.no_grad()
    def _propose(self, state: Tensor | None, explores: bool) -> tuple[Proposal, Tensor]:
        """Returns the placement, and the state after it."""
        before = self.policy.first_state(self.features) if state is None else state
        embedded = self.policy.embed(before, self.adjacency)
        strongest = self._parse(embedded, explores)
        group = groups(self.nodes, strongest, self.memory_bytes)
        able = np.ones((int(group.max(initial=-1)) + 1, self.nodes.able.shape[1]), dtype=np.bool_)
        np.logical_and.at(able, group, self.nodes.able)
        mean = self._pooled(embedded, strongest[None], group[None], len(able))
        odds = masked(self.policy.placer(mean), able)
        choice = odds.argmax(dim=1)
        if explores:
            chances = torch.softmax(odds, dim=1)
            choice = torch.multinomial(chances, 1, generator=self.generator).squeeze(1)
        device = choice.numpy()[group]
        seconds = self.trials.cost(device, len(choice), in_training=explores)
        after = renewed(embedded + mean[torch.from_numpy(group)][None])
        reward = self.trials.search.costing.reference / seconds if seconds > 0 else 0.0
        return Proposal(state, strongest, group, able, choice.numpy(), reward), after

    def _parse(self, embedded: Tensor, explores: bool) -> IntArray:
        """int64[N]: the edge that each node keeps, -1 for none."""
        kept = np.arange(len(self.nodes.source))
        if explores:
            kept = kept[self._survives(len(kept), self.settings.dropout_network)]
        index = torch.from_numpy(kept)[None]
        score = self.policy.score(embedded, self.source[index], self.target[index])[0]
        strongest = strongest_edges(self.nodes, score.numpy(), kept)
        if explores:
            survives = self._survives(len(strongest), self.settings.dropout_parsing)
            strongest = np.where(survives, strongest, -1)
        return strongest

    def _survives(self, count: int, dropout: float) -> BoolArray:
        if dropout <= 0.0:
            return np.ones(count, dtype=np.bool_)
        found: BoolArray = (torch.rand(count, generator=self.generator) >= dropout).numpy()
        return found

    def _pooled(self, embedded: Tensor, strongest: IntArray, group: IntArray, count: int) -> Tensor:
        """float[count, H]: the embeddings of the groups; strongest, group int64[T, N]."""
        edge = torch.from_numpy(np.maximum(strongest, 0))
        has_edge = torch.from_numpy(strongest >= 0)
        weight = torch.ones(edge.shape)
        if len(self.source):
            score = self.policy.score(embedded, self.source[edge], self.target[edge])
            weight = torch.where(has_edge, score, weight)
        return pooled(embedded, weight, torch.from_numpy(group), count)

    def update(self, proposals: list[Proposal]) -> float:
        """Takes k_epochs steps of Adam along (14); returns the loss before the first."""
        discount, turns = self.settings.discount, enumerate(proposals, start=1)
        worth = torch.tensor([discount**i * p.reward for i, p in turns])
        size = max(1, _ROWS // max(self.nodes.count, 1))
        first = math.nan
        for epoch in range(self.settings.k_epochs):
            self.optimizer.zero_grad()
            loss = 0.0
            for k in range(0, len(proposals), size):
                if self.trials.until.is_over:
                    return first
                part = -(self._log_chances(proposals[k : k + size]) * worth[k : k + size]).sum()
                part.backward()
                loss += float(part.detach())
            self.optimizer.step()
            first = loss if epoch == 0 else first
        return first

    def _log_chances(self, proposals: list[Proposal]) -> Tensor:
        """float[T]: log p(P | G') of each placement under the present policy."""
        first = self.policy.first_state(self.features)
        state = torch.cat([first if p.state is None else p.state for p in proposals])
        counts = [len(p.choice) for p in proposals]
        before = np.cumsum([0, *counts])
        group = np.stack([p.group + base for p, base in zip(proposals, before, strict=False)])
        embedded = self.policy.embed(state, self.adjacency)
        strongest = np.stack([p.strongest for p in proposals])
        mean = self._pooled(embedded, strongest, group, int(before[-1]))
        odds = masked(self.policy.placer(mean), np.concatenate([p.able for p in proposals]))
        choice = torch.from_numpy(np.concatenate([p.choice for p in proposals]))
        chosen = torch.log_softmax(odds, dim=1).gather(1, choice[:, None]).squeeze(1)
        which = torch.from_numpy(np.repeat(np.arange(len(proposals)), counts))
        return torch.zeros(len(proposals)).index_add(0, which, chosen)
