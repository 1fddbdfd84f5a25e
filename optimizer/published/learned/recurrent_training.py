"""Trains ColocRL's and the hierarchical planner's policies by REINFORCE, on several placements that
are drawn at once, against the mean reward of those before."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.published.learned.recurrent_network import (
    RecurrentPolicy,
    described_groups,
)
from placewire.optimizer.published.learned.trials import Trials

# A step counts as at most so many times the reference, also one that never ends.
_WORST = 100.0


@dataclass(frozen=True)
class Drawn:
    """One placement. group int64[N]; choice int64[G]: the devices; reward: minus the root of the
    step, in units of the reference (Costing)."""

    group: IntArray
    choice: IntArray
    reward: float


class RecurrentTraining:
    """Trains on one graph. features float[N, F]: of nodes, as groups are described with; inputs
    float[N, inputs]: of nodes, as the grouper reads them; groups: G."""

    def __init__(
        self,
        policy: RecurrentPolicy,
        features: Tensor,
        inputs: Tensor,
        groups: int,
        trials: Trials,
        seed: int,
    ) -> None:
        self.policy, self.features, self.inputs, self.trials = policy, features, inputs, trials
        self.settings, self.groups, self.nodes = policy.settings, groups, trials.nodes
        self.source = torch.from_numpy(self.nodes.source)
        self.target = torch.from_numpy(self.nodes.target)
        self.able = torch.from_numpy(self.nodes.able)
        self.generator = torch.Generator().manual_seed(seed)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=self.settings.learning_rate)
        self.baseline = math.nan

    @torch.no_grad()
    def episode(self, *, explores: bool) -> list[Drawn]:
        """Draws `samples` placements, or as many as there is time for; without exploring, the
        likeliest one."""
        generator = self.generator if explores else None
        group = self._groups(self.settings.samples if explores else 1, generator)
        choice, _ = self._placed(group, None, generator)
        made: list[Drawn] = []
        for one, devices in zip(group.numpy(), choice.numpy().T, strict=True):
            if (explores and self.trials.is_over) or (made and self.trials.until.is_over):
                break
            made.append(Drawn(one, devices, self._reward(one, devices, explores)))
        return made

    def _groups(self, samples: int, generator: torch.Generator | None) -> Tensor:
        """int64[T, N]"""
        if self.policy.grouper is None:
            return torch.arange(self.nodes.count).repeat(samples, 1)
        odds: Tensor = self.policy.grouper(self.inputs)
        if generator is None:
            return odds.argmax(dim=1)[None]
        chances = torch.softmax(odds, dim=1)
        return torch.multinomial(chances, samples, replacement=True, generator=generator).T

    def _placed(
        self, group: Tensor, choice: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Devices int64[G, T] of groups int64[T, N], and the logarithms of their chances."""
        described = described_groups(self.features, self.source, self.target, group, self.groups)
        found: tuple[Tensor, Tensor] = self.policy.placer(
            described, self._able(group), choice, generator
        )
        return found

    def _able(self, group: Tensor) -> Tensor:
        """bool[G, T, D]: the devices that all nodes of a group can have; all devices where there
        are none: then each node has the group's device only if it can."""
        lacks = torch.zeros(self.groups, len(group), self.able.shape[1])
        for t, one in enumerate(group):
            lacks[:, t].index_add_(0, one, (~self.able).float())
        able = lacks == 0
        able[~able.any(dim=2)] = True
        return able

    def _reward(self, group: IntArray, choice: IntArray, explores: bool) -> float:
        device = choice[group]
        every = np.arange(self.nodes.count)
        fits = self.nodes.able[every, device]
        device = np.where(fits, device, self.nodes.able.argmax(axis=1))
        decided = len(np.unique(group))
        seconds = self.trials.cost(device, decided, in_training=explores)
        reference = self.trials.search.costing.reference
        return -math.sqrt(min(seconds / reference, _WORST))

    def update(self, drawn: list[Drawn]) -> float:
        """Takes one step of Adam and returns the loss before it."""
        rewards = torch.tensor([one.reward for one in drawn])
        mean = float(rewards.mean())
        before = mean if math.isnan(self.baseline) else self.baseline
        kept = self.settings.baseline_kept
        self.baseline = kept * before + (1.0 - kept) * mean
        group = torch.from_numpy(np.stack([one.group for one in drawn]))
        choice = torch.from_numpy(np.stack([one.choice for one in drawn], axis=1))
        _, chances = self._placed(group, choice, None)
        # What an empty group is given changes nothing.
        held = torch.zeros(len(drawn), self.groups).scatter_(1, group, 1.0)
        logs = (chances.T * held).sum(dim=1)
        if self.policy.grouper is not None:
            grouped = torch.log_softmax(self.policy.grouper(self.inputs), dim=1)
            logs = logs + grouped.gather(1, group.T).sum(dim=0)
        loss = -(logs * (rewards - before)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.clip_norm)
        self.optimizer.step()
        return float(loss.detach())
