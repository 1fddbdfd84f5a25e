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
    averaged,
    normalised_adjacency,
    pooled,
    renewed,
)
from placewire.optimizer.published.learned.layers import masked
from placewire.optimizer.published.learned.nodes import Nodes
from placewire.optimizer.published.learned.parsing import groups, parsed_graph, strongest_edges
from placewire.optimizer.published.learned.trials import Trials

# An update takes at most so many placements times nodes through the networks at once.
_ROWS = 40_000


@dataclass(frozen=True)
class Round:
    """What a round begins with. nodes: its graph, which the round before parsed, or the graph as
    given; member int64[N0]: the node of that graph in which each node of the graph as given is;
    embedding float[N0, H]: of these nodes, None before the first round."""

    nodes: Nodes
    member: IntArray
    embedding: Tensor | None


@dataclass(frozen=True)
class Proposal:
    """One placement. nodes: the round's graph; parsed: G', whose nodes are the groups that were
    placed. state float[N, H]: the nodes' state, None for the first state, which is made of the
    features; strongest int64[N]: the edge that each node kept, -1 for none; group int64[N];
    choice int64[groups]: the devices."""

    nodes: Nodes
    parsed: Nodes
    state: Tensor | None
    strongest: IntArray
    group: IntArray
    choice: IntArray
    reward: float


@dataclass(frozen=True)
class Beside:
    """The graphs of several proposals beside each other, as one graph of N nodes and E edges.
    adjacency: sparse [N, N]; source, target int64[E]; strongest, group int64[N]; able
    bool[groups, D]; choice int64[groups]; proposal int64[groups]: whose group each is."""

    adjacency: Tensor
    source: Tensor
    target: Tensor
    strongest: IntArray
    group: IntArray
    able: BoolArray
    choice: IntArray
    proposal: IntArray


class HsdagTraining:
    """Trains on one graph, features float[N, columns], with placements that `trials` tries."""

    def __init__(self, policy: HsdagPolicy, features: Tensor, trials: Trials, seed: int) -> None:
        self.policy, self.features, self.trials = policy, features, trials
        self.settings = policy.settings
        self.nodes = trials.nodes
        self.memory_bytes = trials.search.problem.cluster.memory_bytes
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=policy.settings.learning_rate)

    def episode(self, *, explores: bool) -> list[Proposal]:
        """Proposes update_timestep placements, or as many as there is time for. Without exploring,
        all edges are kept, the likeliest devices are chosen, and only the time limit counts."""
        made: list[Proposal] = []
        at = self._first_round(None)
        for _ in range(self.settings.update_timestep):
            if (explores and self.trials.is_over) or (made and self.trials.until.is_over):
                break
            proposal, at = self._propose(at, explores)
            made.append(proposal)
        return made

    def _first_round(self, embedding: Tensor | None) -> Round:
        return Round(self.nodes, np.arange(self.nodes.count), embedding)

    @torch.no_grad()
    def _propose(self, at: Round, explores: bool) -> tuple[Proposal, Round]:
        """Returns the placement, and the round after it."""
        nodes, state = at.nodes, self._state(at)
        source, target = _ends(nodes)
        begun = self.policy.first_state(self.features) if state is None else state
        embedded = self.policy.embed(begun, normalised_adjacency(source, target, nodes.count))
        strongest = self._parse(nodes, embedded, source, target, explores)
        group = groups(nodes, strongest, self.memory_bytes)
        parsed = parsed_graph(nodes, group)
        weight = self._weight(embedded, source, target, strongest)
        mean = pooled(embedded, weight, torch.from_numpy(group), parsed.count)
        odds = masked(self.policy.placer(mean), parsed.able)
        choice = odds.argmax(dim=1)
        if explores:
            chances = torch.softmax(odds, dim=1)
            choice = torch.multinomial(chances, 1, generator=self.generator).squeeze(1)
        member = group[at.member]
        seconds = self.trials.cost(choice.numpy()[member], len(choice), in_training=explores)
        reward = self.trials.search.costing.reference / seconds if seconds > 0 else 0.0
        made = Proposal(nodes, parsed, state, strongest, group, choice.numpy(), reward)
        embedding = embedded if nodes is self.nodes else at.embedding
        assert embedding is not None
        embedding = renewed(embedding + mean[torch.from_numpy(member)])
        if parsed.count == nodes.count or not len(parsed.source):
            return made, self._first_round(embedding)
        return made, Round(parsed, member, embedding)

    def _state(self, at: Round) -> Tensor | None:
        """float[N, H]: the mean of the embeddings that each node of the round's graph holds."""
        if at.embedding is None:
            return None
        return renewed(averaged(at.embedding, torch.from_numpy(at.member), at.nodes.count))

    def _parse(
        self, nodes: Nodes, embedded: Tensor, source: Tensor, target: Tensor, explores: bool
    ) -> IntArray:
        """int64[N]: the edge that each node keeps, -1 for none: (9)."""
        kept = np.arange(len(nodes.source))
        if explores:
            kept = kept[self._survives(len(kept), self.settings.dropout_network)]
        index = torch.from_numpy(kept)
        score = self.policy.score(embedded, source[index], target[index])
        strongest = strongest_edges(nodes, score.numpy(), kept)
        if explores:
            survives = self._survives(len(strongest), self.settings.dropout_parsing)
            strongest = np.where(survives, strongest, -1)
        return strongest

    def _survives(self, count: int, dropout: float) -> BoolArray:
        if dropout <= 0.0:
            return np.ones(count, dtype=np.bool_)
        found: BoolArray = (torch.rand(count, generator=self.generator) >= dropout).numpy()
        return found

    def _weight(
        self, embedded: Tensor, source: Tensor, target: Tensor, strongest: IntArray
    ) -> Tensor:
        """float[N]: the score of the edge that each node kept, 1 where it kept none."""
        weight = torch.ones(len(strongest))
        if not len(source):
            return weight
        edge = torch.from_numpy(np.maximum(strongest, 0))
        score = self.policy.score(embedded, source[edge], target[edge])
        return torch.where(torch.from_numpy(strongest >= 0), score, weight)

    def update(self, proposals: list[Proposal]) -> float:
        """Takes k_epochs steps of Adam along (14); returns the loss before the first."""
        discount, turns = self.settings.discount, enumerate(proposals, start=1)
        worth = torch.tensor([discount**i * p.reward for i, p in turns])
        size = max(1, _ROWS // max(self.nodes.count, 1))
        parts = [slice(k, k + size) for k in range(0, len(proposals), size)]
        beside = [_beside(proposals[part]) for part in parts]
        first = math.nan
        for epoch in range(self.settings.k_epochs):
            self.optimizer.zero_grad()
            loss = 0.0
            for part, graph in zip(parts, beside, strict=True):
                if self.trials.until.is_over:
                    return first
                logs = self._log_chances(proposals[part], graph)
                part_loss = -(logs * worth[part]).sum()
                part_loss.backward()
                loss += float(part_loss.detach())
            self.optimizer.step()
            first = loss if epoch == 0 else first
        return first

    def _log_chances(self, proposals: list[Proposal], of: Beside) -> Tensor:
        """float[T]: log p(P | G') of each placement under the present policy, the sum of those of
        its groups' devices."""
        first = self.policy.first_state(self.features)
        state = torch.cat([first if p.state is None else p.state for p in proposals])
        embedded = self.policy.embed(state, of.adjacency)
        weight = self._weight(embedded, of.source, of.target, of.strongest)
        mean = pooled(embedded, weight, torch.from_numpy(of.group), len(of.able))
        odds = masked(self.policy.placer(mean), of.able)
        choice = torch.from_numpy(of.choice)
        chosen = torch.log_softmax(odds, dim=1).gather(1, choice[:, None]).squeeze(1)
        which = torch.from_numpy(of.proposal)
        return torch.zeros(len(proposals)).index_add(0, which, chosen)


def _ends(nodes: Nodes) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(nodes.source), torch.from_numpy(nodes.target)


def _beside(proposals: list[Proposal]) -> Beside:
    # By proposal: how many nodes, edges and groups those before it have.
    nodes = np.cumsum([0, *(p.nodes.count for p in proposals)])
    edges = np.cumsum([0, *(len(p.nodes.source) for p in proposals)])
    groups_before = np.cumsum([0, *(p.parsed.count for p in proposals)])
    source = np.concatenate([p.nodes.source + n for p, n in zip(proposals, nodes, strict=False)])
    target = np.concatenate([p.nodes.target + n for p, n in zip(proposals, nodes, strict=False)])
    strongest = np.concatenate(
        [np.where(p.strongest >= 0, p.strongest + e, -1)
         for p, e in zip(proposals, edges, strict=False)]
    )  # fmt: skip
    group = np.concatenate([p.group + g for p, g in zip(proposals, groups_before, strict=False)])
    ends = torch.from_numpy(source), torch.from_numpy(target)
    return Beside(
        normalised_adjacency(*ends, int(nodes[-1])), *ends, strongest, group,
        able=np.concatenate([p.parsed.able for p in proposals]),
        choice=np.concatenate([p.choice for p in proposals]),
        proposal=np.repeat(np.arange(len(proposals)), np.diff(groups_before)),
    )  # fmt: skip
