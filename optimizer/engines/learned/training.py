"""What both learned engines do around their training: files, words, threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from optimizer.engines.learned.policy_file import Arrays, PolicyFile, refuse_other_arrays
from optimizer.engines.learned.trials import Episode, Trials
from optimizer.engines.solution import Progress, Report, Solution
from optimizer.problem import InfeasibleError, Learning, Problem
from optimizer.quantities import format_step

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


def arrays_of(policy: nn.Module) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in policy.state_dict().items()}


def take_arrays(policy: nn.Module, learning: Learning, arrays: Arrays) -> None:
    """Raises PolicyFileError where they are not the policy's."""
    assert learning.policy is not None
    wanted = {name: tuple(value.shape) for name, value in policy.state_dict().items()}
    refuse_other_arrays(learning.policy, wanted, arrays)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})


def sayer(engine: str, progress: Report | None) -> Callable[[Episode], None]:
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


def tell(progress: Report | None, words: str) -> None:
    if progress is not None:
        progress(Progress(0.0, float("inf"), 0.0, 0, words))


def summary(engine: str, trials: Trials) -> str:
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


def as_it_is(engine: str, held: PolicyFile, trials: Trials) -> str:
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


def answer(engine: str, trials: Trials) -> Solution:
    """The best that was tried. Raises InfeasibleError where none is within the memories."""
    best = trials.best
    assert best is not None
    if best.excess > 0.0 or not np.isfinite(best.cost):
        raise InfeasibleError(
            f"{engine}: none of {trials.count:,} placements that it tried is within the devices' "
            "memories and reaches every operator; engine auto searches within the memories"
        )
    return Solution(best.device, best.priority, None)
