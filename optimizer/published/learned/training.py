"""What both learned engines do around their training: files, words, threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import nn

from placewire.optimizer.engines.solution import Progress, Report, Solution
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.learned.curve import write_curve
from placewire.optimizer.published.learned.policy_file import (
    Arrays,
    PolicyFile,
    refuse_other_arrays,
)
from placewire.optimizer.published.learned.settings import Learning
from placewire.optimizer.published.learned.trials import Episode, Trials
from placewire.optimizer.quantities import format_step

_SAY_EVERY_SECONDS = 3.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of one order, whatever the machine; put back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What torch draws inside is decided by the seed, and nothing outside is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Training(Protocol):
    """An engine's episodes, of placements that its trials judge."""

    def run(self, said: Callable[[Episode], None]) -> None: ...

    def episode(self, *, explores: bool) -> object: ...


def run_training(
    engine: str,
    training: Training,
    trials: Trials,
    settings: SolveSettings,
    held: PolicyFile | None,
    progress: Report | None,
    unseen: str = "",
) -> None:
    """A policy as it is, where it was loaded or is not to be trained; then its training, and as it
    is after that. unseen: what of the graph a loaded policy does not know, in words."""
    if held is not None or settings.moves == 0:
        training.episode(explores=False)
    if held is not None:
        _tell(progress, _as_it_is(engine, held, trials) + unseen)
    if settings.moves != 0:
        training.run(_sayer(engine, progress))
        training.episode(explores=False)


def conclusion(
    engine: str, problem: Problem, settings: SolveSettings, trials: Trials, progress: Report | None
) -> Solution:
    """With the training curve in a file where that is asked for. Raises as `_answer`."""
    curve = Learning.of(settings.options).curve
    if curve is not None:
        write_curve(trials.curve, curve, f"{engine}, {problem.graph.name}")
    _tell(progress, _summary(engine, trials))
    return _answer(engine, trials)


def arrays_of(policy: nn.Module) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in policy.state_dict().items()}


def take_arrays(policy: nn.Module, learning: Learning, arrays: Arrays) -> None:
    """Raises PolicyFileError where they are not the policy's."""
    assert learning.policy is not None
    wanted = {name: tuple(value.shape) for name, value in policy.state_dict().items()}
    refuse_other_arrays(learning.policy, wanted, arrays)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})


def _sayer(engine: str, progress: Report | None) -> Callable[[Episode], None]:
    """Tells of an episode now and then."""
    began = said = time.monotonic()

    def say(row: Episode) -> None:
        nonlocal said
        now = time.monotonic()
        if progress is None or now - said < _SAY_EVERY_SECONDS:
            return
        said = now
        words = (
            f"{engine}: episode {row.number}, {row.placements} placements tried, mean "
            f"{format_step(row.mean_step_seconds)}, best {format_step(row.best_so_far_seconds)}"
        )
        progress(Progress(now - began, row.best_so_far_seconds, 0.0, row.placements, words))

    return say


def _tell(progress: Report | None, words: str) -> None:
    if progress is not None:
        progress(Progress(0.0, float("inf"), 0.0, 0, words))


def _summary(engine: str, trials: Trials) -> str:
    """What the training came to, in one line."""
    if not trials.curve:
        return f"{engine}: no training"
    first, last = trials.curve[0], trials.curve[-1]
    return (
        f"{engine}: {last.number} episodes, {last.placements} placements tried in "
        f"{last.wall_seconds:.1f} s; an episode's mean went from "
        f"{format_step(first.mean_step_seconds)} to {format_step(last.mean_step_seconds)}, the "
        f"best is {format_step(last.best_so_far_seconds)}"
    )


def _as_it_is(engine: str, held: PolicyFile, trials: Trials) -> str:
    """How a loaded policy does before any training here."""
    assert trials.best is not None
    return (
        f"{engine}: the policy, {held.trained}, comes to {format_step(trials.best.cost)} here "
        "without training"
    )


def trained_on(problem: Problem, held: PolicyFile | None, trials: Trials) -> str:
    """Its history, for whoever loads it."""
    here = f"{trials.trained} placements of {problem.graph.name}"
    return f"trained with {here}" if held is None else f"{held.trained}, then {here}"


def _answer(engine: str, trials: Trials) -> Solution:
    """The best that was tried. Raises InfeasibleError where none is within the memories."""
    best = trials.best
    assert best is not None
    if best.excess > 0.0 or not np.isfinite(best.cost):
        raise InfeasibleError(
            f"{engine}: none of {trials.count:,} placements that it tried is within the devices' "
            "memories and reaches every operator; engine auto searches within the memories"
        )
    return Solution(best.device, best.priority, None)
