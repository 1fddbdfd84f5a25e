"""Trains a policy: the loop over episodes, the policy and curve files, and the answer.

All learned engines go through `train_policy` and `conclusion`; what differs between them is the
`Training` that each makes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from placewire.optimizer.engines.solution import Progress, Report, Solution
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.learned.curve import write_curve
from placewire.optimizer.published.learned.nodes import Nodes
from placewire.optimizer.published.learned.policy_file import (
    PolicyFile,
    load_policy,
    refuse_other_arrays,
    save_policy,
)
from placewire.optimizer.published.learned.settings import (
    HsdagSettings,
    Learning,
    PlacetoSettings,
    RecurrentSettings,
)
from placewire.optimizer.published.learned.trials import Trials
from placewire.optimizer.quantities import format_step

_SAY_EVERY_SECONDS = 3.0


class Training(Protocol):
    """A policy, and how it tries placements of one graph and learns from them."""

    @property
    def policy(self) -> nn.Module: ...

    @property
    def settings(self) -> HsdagSettings | PlacetoSettings | RecurrentSettings: ...

    def episode(self, *, explores: bool) -> list[Any]:
        """Returns what was decided; nothing where there is no time or nothing to decide."""

    def update(self, decided: list[Any]) -> float:
        """Returns the loss before the update; nan where the policy was not updated."""


@dataclass(frozen=True)
class Begun:
    """A training before its first episode. facts: what a policy file needs to make the networks
    again; unseen: what a loaded policy does not know of the graph, in words."""

    training: Training
    facts: Mapping[str, Any] = field(default_factory=dict)
    unseen: str = ""


def train_policy(
    engine: str,
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None,
    nodes_of: Callable[[Problem], Nodes],
    begin: Callable[[Trials, Learning, PolicyFile | None], Begun],
) -> Trials:
    """A policy is applied without exploring before its training, where it was loaded or training is
    left out, and again after its training."""
    learning, devices = Learning.of(settings.options), len(problem.cluster.devices)
    until = deadline(engine, settings)
    trials = Trials(problem, nodes_of(problem), settings.moves, until)
    if not trials.nodes.count:
        trials.cost(trials.nodes.of_operator, 0, in_training=False)
        return trials
    held = None if learning.policy is None else load_policy(learning.policy, engine, devices)
    with _reproducible(settings.seed):
        begun = begin(trials, learning, held)
        training, policy = begun.training, begun.training.policy
        if learning.policy is not None and held is not None:
            wanted = {name: tuple(value.shape) for name, value in policy.state_dict().items()}
            refuse_other_arrays(learning.policy, wanted, held.arrays)
            policy.load_state_dict({k: torch.from_numpy(array) for k, array in held.arrays.items()})
        if held is not None or settings.moves == 0:
            training.episode(explores=False)
        if held is not None:
            assert trials.best is not None
            words = (
                f"{engine}: the policy, {held.trained}, comes to {format_step(trials.best.cost)} "
                f"here without training{begun.unseen}"
            )
            _tell(progress, words)
        if settings.moves != 0:
            _run_episodes(engine, training, trials, progress)
            training.episode(explores=False)
    if learning.save_policy is not None:
        trained = f"{trials.trained} placements of {problem.graph.name}"
        trained = f"trained with {trained}" if held is None else f"{held.trained}, then {trained}"
        arrays = {name: value.detach().numpy() for name, value in policy.state_dict().items()}
        file = PolicyFile(engine, devices, begun.facts, trained, arrays)
        save_policy(file, learning.save_policy)
    return trials


@contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """torch draws from the seed, and sums in one order, on one thread; both are put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _run_episodes(engine: str, training: Training, trials: Trials, progress: Report | None) -> None:
    """Runs episodes until they, the placements, the time or the patience are used up."""
    began = said = time.monotonic()
    for _ in range(training.settings.max_episodes):
        if trials.is_over or trials.stale_for(training.settings.patience):
            return
        decided = training.episode(explores=True)
        if not decided:
            return
        row = trials.close_episode(math.nan if trials.until.is_over else training.update(decided))
        now = time.monotonic()
        if progress is not None and now - said >= _SAY_EVERY_SECONDS:
            said = now
            words = (
                f"{engine}: episode {row.number}, {row.placements} placements tried, mean "
                f"{format_step(row.mean_step_seconds)}, best {format_step(row.best_so_far_seconds)}"
            )
            progress(Progress(now - began, row.best_so_far_seconds, 0.0, row.placements, words))


def conclusion(
    engine: str, problem: Problem, settings: SolveSettings, trials: Trials, progress: Report | None
) -> Solution:
    """Returns the best placement that was tried, and writes the training curve where
    settings.options name a file for it. Raises InfeasibleError where no placement that was tried is
    within the memories."""
    path = Learning.of(settings.options).curve
    if path is not None:
        write_curve(trials.curve, path, f"{engine}, {problem.graph.name}")
    words = "no training"
    if trials.curve:
        first, last = trials.curve[0], trials.curve[-1]
        words = (
            f"{last.number} episodes, {last.placements} placements tried in "
            f"{last.wall_seconds:.1f} s; an episode's mean went from "
            f"{format_step(first.mean_step_seconds)} to {format_step(last.mean_step_seconds)}, the "
            f"best is {format_step(last.best_so_far_seconds)}"
        )
    _tell(progress, f"{engine}: {words}")
    best = trials.best
    assert best is not None
    if best.excess > 0.0 or not math.isfinite(best.cost):
        raise InfeasibleError(
            f"{engine}: none of {trials.count:,} placements that it tried is within the devices' "
            "memories and reaches every operator; engine auto searches within the memories"
        )
    return Solution(best.device, best.priority, None)


def _tell(progress: Report | None, words: str) -> None:
    if progress is not None:
        progress(Progress(0.0, float("inf"), 0.0, 0, words))
