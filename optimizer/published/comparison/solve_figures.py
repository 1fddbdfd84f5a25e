"""Figures of ours that are of solves: steps, times, and what one saves against another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from placewire.optimizer.published.comparison.our_figures import (
    Between,
    Ended,
    NoFigureError,
    Ours,
    exact,
)
from placewire.optimizer.published.comparison.presets.preset import EVALUATION_STEPS, Solved
from placewire.optimizer.published.comparison.ranking import (
    own_gap,
    seconds_to_gap,
    step_of,
    stopped_by_the_clock,
)
from placewire.optimizer.published.comparison.rows import Row


def solved(row: Row, asked: Solved) -> Ours:
    late = stopped_by_the_clock(row)
    ended: Ended = "clock" if late else "itself"
    if row.outcome != "placed":
        why = f"{row.outcome} after {row.search_seconds:.1f} s: {row.why}"
        if asked.figure in ("search", "solver"):
            known = (Between(row.search_seconds, inf),) if late else ()
            raise NoFigureError(why, "clock" if late else "none", *known)
        if row.outcome == "infeasible" and asked.figure != "speedup" and not late:
            raise _unplaced(why)
        raise NoFigureError(why, "clock" if late else "none")
    if asked.figure == "search":
        took = Between(row.search_seconds, inf if late else row.search_seconds)
        return Ours(f"{row.search_seconds:.3g} s", (took,), ended)
    if asked.figure == "solver":
        return _solver_seconds(row)
    step = step_of(row)
    if asked.figure == "own":
        step = row.step_seconds if row.own_seconds is None else row.own_seconds
    if step is None:
        why = "a memory is exceeded under contended"
        raise NoFigureError(why, "clock") if late else _unplaced(why)
    if asked.figure == "speedup":
        alone = row.single_device_seconds
        if not alone or not step:
            raise NoFigureError("no single device can hold the model")
        gained = Between(alone / step, inf if late else alone / step)
        return Ours(f"{gained.low:.2f}x", (gained,), ended)
    if asked.figure == "evaluation":
        whole = row.search_seconds + EVALUATION_STEPS * step
        return Ours(f"{whole / 60:.3g} min", (Between(0.0 if late else whole, whole),), ended)
    return Ours(milliseconds(step), (Between(0.0 if late else step, step),), ended)


def _unplaced(why: str) -> NoFigureError:
    return NoFigureError(why, "unplaced", Between(inf, inf))


def saved(slow: Between, fast: Between) -> Ours:
    """Of two steps, each of which is at most what was found."""
    part, known = saved_part(slow, fast)
    return Ours(percent(part), (known,), _ended(known))


def saved_part(slow: Between, fast: Between) -> tuple[float, Between]:
    part = 1 - fast.high / slow.high
    low = part if slow.low == slow.high else -inf
    return part, Between(low, part if fast.low == fast.high else inf)


def step_part(row: Row, asked: Solved) -> tuple[float, Between]:
    (known,) = solved(row, asked).known
    return known.high, known


def over_seeds(
    seeds: Sequence[Callable[[], tuple[float, Between]]], shown: Callable[[float], str]
) -> Ours:
    """The mean, and the standard deviation of the sample. Seeds without a figure are left out, and
    the mean is not known to be that of all then. Raises NoFigureError where none has one."""
    found, failed = [], []
    for seed in seeds:
        try:
            found.append(seed())
        except NoFigureError as error:
            failed.append(error)
    if not found:
        raise next((error for error in failed if error.ended == "clock"), failed[0])
    numbers = [number for number, _ in found]
    text = shown(float(np.mean(numbers)))
    if len(found) > 1:
        text += f" ± {shown(float(np.std(numbers, ddof=1)))}"
    if failed:
        return Ours(f"{text}, {len(found)} of {len(seeds)} seeds", (Between(-inf, inf),), "clock")
    middle = Between(
        float(np.mean([one.low for _, one in found])),
        float(np.mean([one.high for _, one in found])),
    )
    return Ours(text, (middle,), _ended(middle))


def _ended(known: Between) -> Ended:
    return "itself" if known.low == known.high else "clock"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def percent(part: float) -> str:
    return f"{part:.1%}"


def _solver_seconds(row: Row) -> Ours:
    reached, gap = seconds_to_gap(row, row.gap), own_gap(row)
    if reached is not None:
        return Ours(f"{reached:.3g} s", exact(reached))
    end = "it says no bound" if gap is None else f"its gap was {gap:.0%}"
    raise NoFigureError(
        f"after {row.search_seconds:.0f} s {row.engine} was not within {row.gap:.0%} of its own "
        f"bound: {end}",
        "none" if gap is None else "clock",
        *([] if gap is None else [Between(row.search_seconds, inf)]),
    )
