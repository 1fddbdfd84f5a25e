"""Bounds by contradiction: a step of T seconds would force so much that no schedule is left.

If every operator must end within T, then
- the two operators of an edge share a device where the edge's transfer does not fit between the
  head of its source and the tail of its target: their units become one;
- two units are on different devices where they cannot run one after the other on one device within
  T, or do not fit into any memory together: every edge between them is a transfer, and on every
  path from one to the other is a transfer.
Both make heads and tails longer, which forces more. Where a head, a tail, a unit alone or the work
in a window no longer fits into T, there is no schedule of T, and T is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import BoolArray, FloatArray, IntArray
from placewire.optimizer.bounds.bound import Bound
from placewire.optimizer.bounds.load import load_between
from placewire.optimizer.bounds.paths import one_machine_seconds
from placewire.optimizer.bounds.relaxation import Relaxation
from placewire.optimizer.bounds.turns import with_turns
from placewire.optimizer.kernels.graphs.heads import joined_units, pair_seconds, turn_seconds
from placewire.optimizer.problem import Problem

# How often heads and tails may be computed: _EFFORT over the number of operators, in this range.
_EFFORT, _LEAST_ROUNDS, _MOST_ROUNDS = 90_000, 4, 80
_ROUNDS_PER_TRIAL = 12
_FIRST_STRIDE = 0.01
_PRECISION = 5e-4
# The refutation tries every two of so many units with most work and so many that hold most,
# neighbours or not.
_HEAVY = 20
# In each round so many pairs of units are tried on one machine, those of most work first, and only
# where their work is more than this part of the step.
_PAIRS = 400
_WORTH_TRYING = 0.3


@dataclass(frozen=True)
class Limits:
    """work float64[n] as `share_of_load` gives it; held_bytes int64[n]: certainly resident during
    the whole step; memory_bytes: of the largest device."""

    work: FloatArray
    held_bytes: IntArray
    memory_bytes: int


def limits_of(problem: Problem, work: FloatArray) -> Limits:
    """Weights are resident for the whole step; under the model `thesis` all memory is."""
    graph = problem.graph
    held = graph.weight_bytes
    if problem.model == "thesis":
        held = held + graph.activation_bytes + graph.workspace_bytes
    return Limits(work, held, int(problem.cluster.memory_bytes.max()))


def contradiction_bound(relaxation: Relaxation, limits: Limits, proven: float) -> Bound:
    """The largest step that was refuted, or `proven` seconds where none was. Deterministic."""
    effort = _EFFORT // max(relaxation.operators, 1)
    rounds = min(max(effort, _LEAST_ROUNDS), _MOST_ROUNDS)
    low, high = proven, np.inf
    stride = _FIRST_STRIDE * proven
    while rounds > 0 and stride > _PRECISION * proven:
        trial = low + stride
        forced, used = tightened(relaxation, limits, trial, min(rounds, _ROUNDS_PER_TRIAL))
        rounds -= used
        if forced is None:
            low = trial
        else:
            high = trial
        stride = (high - low) / 2 if np.isfinite(high) else 2 * stride
    return Bound(
        low,
        "contradiction: within less, too much would have to share a device or wait for transfers",
    )


def tightened(
    relaxation: Relaxation, limits: Limits, seconds: float, rounds: int
) -> tuple[Relaxation | None, int]:
    """(what a step within `seconds` forces, None where it is impossible; the rounds taken)."""
    for used in range(1, rounds + 1):
        if _overflows(relaxation, limits, seconds):
            return None, used
        joined = _forced_together(relaxation, seconds)
        following = _clashing(_forced_apart(joined, limits, seconds), limits, seconds)
        if following is relaxation:
            return relaxation, used
        relaxation = following
    return relaxation, rounds


def _overflows(relaxation: Relaxation, limits: Limits, seconds: float) -> bool:
    held = np.bincount(relaxation.unit, weights=limits.held_bytes)
    return bool(
        relaxation.path_seconds > seconds
        or held.max(initial=0) > limits.memory_bytes
        or one_machine_seconds(relaxation).max(initial=0.0) > seconds
        or load_between(relaxation, limits.work).seconds > seconds
    )


def _forced_together(relaxation: Relaxation, seconds: float) -> Relaxation:
    """Joins the units at both ends of every edge whose transfer does not fit."""
    head, tail = relaxation.heads_and_tails
    source, target, unit = relaxation.source, relaxation.target, relaxation.unit
    sent = head[source] + relaxation.work[source] + relaxation.far
    late = sent + relaxation.work[target] + tail[target] > seconds
    # Where units are certainly apart, an edge leaves no choice: the heads contain its delay.
    tight = late & (relaxation.near < relaxation.far) & (unit[source] != unit[target])
    if not tight.any():
        return relaxation
    joined = joined_units(unit, source[tight], target[tight], relaxation.units)
    inside = joined[source] == joined[target]
    far = np.where(inside, np.inf, relaxation.far)
    together = relaxation.with_units(joined, relaxation.near, far)
    return with_turns(together) if relaxation.takes_turns else together


def _forced_apart(relaxation: Relaxation, limits: Limits, seconds: float) -> Relaxation:
    """Makes transfers of the edges between units that cannot share a device."""
    unit = relaxation.unit
    ends = np.sort(np.stack([unit[relaxation.source], unit[relaxation.target]]), axis=0)
    key = ends[0] * relaxation.units + ends[1]
    is_choice = (relaxation.near < relaxation.far) & (ends[0] != ends[1])
    pairs = np.unique(key[is_choice])
    one, other = np.divmod(pairs, max(relaxation.units, 1))
    held = np.bincount(unit, weights=limits.held_bytes)
    apart = held[one] + held[other] > limits.memory_bytes
    apart |= _seconds_together(relaxation, one, other, seconds) > seconds
    if not apart.any():
        return relaxation
    sent = is_choice & np.isin(key, pairs[apart])
    near = np.where(sent, relaxation.far, relaxation.near)
    return relaxation.with_units(unit, near, relaxation.far)


def _clashing(relaxation: Relaxation, limits: Limits, seconds: float) -> Relaxation:
    """Notes which of the heaviest units cannot share a device."""
    unit = relaxation.unit
    held = np.bincount(unit, weights=limits.held_bytes)
    load = np.bincount(unit, weights=relaxation.work)
    heavy = np.unique(np.argsort(-np.stack([held, load]), axis=1, kind="stable")[:, :_HEAVY])
    one, other = (heavy[k] for k in np.triu_indices(len(heavy), 1))
    apart = held[one] + held[other] > limits.memory_bytes
    apart |= _seconds_together(relaxation, one, other, seconds) > seconds
    number = np.full(relaxation.units, -1, dtype=np.int64)
    number[heavy] = np.arange(len(heavy))
    clashes = np.zeros((len(heavy), len(heavy)), dtype=bool)
    ends = number[one[apart]], number[other[apart]]
    clashes[ends], clashes[ends[::-1]] = True, True
    group: IntArray = number[unit]
    if not apart.any() or _says_no_more(relaxation, group, clashes):
        return relaxation
    return relaxation.with_clashes(group, clashes)


def _says_no_more(relaxation: Relaxation, group: IntArray, clashes: BoolArray) -> bool:
    return np.array_equal(relaxation.group, group) and np.array_equal(relaxation.clashes, clashes)


def _seconds_together(
    relaxation: Relaxation, one: IntArray, other: IntArray, seconds: float
) -> FloatArray:
    """float64 per pair of units: a bound on the step with both on one device; 0 if not tried."""
    load = np.bincount(relaxation.unit, weights=relaxation.work)
    together = load[one] + load[other]
    tried = np.argsort(-together, kind="stable")[:_PAIRS]
    tried = tried[together[tried] > _WORTH_TRYING * seconds]
    head, tail = relaxation.heads_and_tails
    found = np.zeros(len(one))
    times, pairs = (head, relaxation.work, tail), (one[tried], other[tried])
    if relaxation.takes_turns:
        found[tried] = turn_seconds(*times, *relaxation.members_by_turn, *pairs)
    else:
        found[tried] = pair_seconds(*times, *relaxation.members_by_head, *pairs)
    return found
