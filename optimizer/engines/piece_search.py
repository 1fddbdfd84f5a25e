"""Simulated annealing of whole pieces: the first search where a step has several micro-batches.

One move changes the devices of a range of pieces in all micro-batches, or in some, which layers
share messages, or which operators are urgent. Each state is simulated as a whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from placewire.optimizer.engines.costing import Found
from placewire.optimizer.engines.grids import few_grid_layouts, grid_shapes
from placewire.optimizer.engines.layout import USUAL_CUTS, Layout, Urgency
from placewire.optimizer.engines.pieces import Pieces
from placewire.optimizer.problem import Problem

CHAINS = 2
# So many of the best grids are searched, for this part of the time, before the best of them is; and
# fewer where there is no time to look at so many states from each.
_GRIDS, _GRIDS_PART, _LEAST_STATES = 8, 0.7, 80
# No grid is begun after this part of the time, where one of each shape is known.
_LOOK_PART = 0.4
# The temperature at the begin, as a part of the step, of one walk and the next in turn: pipelines
# of unlike layers have deep valleys, which only the hotter one leaves.
_HOT = 0.003, 0.01
# One state counts as so many moves of a budget; a walk looks at _MOST_STATES states at most.
_MOVES_PER_STATE, _MOST_STATES = 10, 3_000
# Between these, lateness matters.
_LATENESS = (1e-4, 4.0)
# The part of moves that changes which layers share messages, where the search counts messages; and
# in data parallelism, in which most moves of pieces only send more.
_CUTS_PART, _CUTS_PART_OF_ONE_COLUMN = 0.3, 0.7
# The part of the other moves that changes which operators come before their turn.
_URGENCY_PART = 0.05


@dataclass(frozen=True)
class _State:
    layout: Layout
    found: Found

    @property
    def key(self) -> tuple[float, float]:
        return self.found.key


def piece_solutions(
    problem: Problem,
    seconds: float = 0.0,
    moves: int | None = None,
    seed: int = 0,
    on_best: Callable[[Found], None] = lambda found: None,
    known: Sequence[Layout] = (),
) -> list[Found]:
    """The best found from the grids and from known layouts in so many seconds, or moves, and the
    best of what it was found from; [] where the step has one micro-batch, or the cluster one
    device. on_best: called with shorter ones that fit the memories."""
    if problem.graph.micro_batch.max(initial=-1) < 1 or len(problem.cluster.devices) < 2:
        return []
    begun = time.monotonic()
    pieces = Pieces(problem)
    if pieces.micro_batches < 2:
        return []
    before_grids = time.monotonic()
    until = math.inf if moves is not None else begun + _LOOK_PART * seconds
    grids = _grids(pieces, until, on_best)
    each = (time.monotonic() - before_grids) * CHAINS / len(grids)
    of_known = [_State(layout, pieces.cost(layout)) for layout in known]
    grids = _without_alike(sorted([*of_known, *grids], key=lambda state: state.key))
    first = grids[0]
    if first.found.excess == 0.0:
        on_best(first.found)
    states = None if moves is None else max(1, moves // (_MOVES_PER_STATE * (_GRIDS + 1)))
    left = max(seconds - (time.monotonic() - begun), 0.0)
    several = left * _GRIDS_PART * CHAINS
    few = grids[:_GRIDS]
    if states is None:
        few = few[: max(CHAINS, int(several / (each * _LEAST_STATES)))]
    short = several / len(few)

    def walk(start: _State, number: int, limit: float) -> _State:
        hot = _HOT[number % len(_HOT)]
        return _annealed(pieces, start, seed * 1_009 + number, hot, limit, states)

    with ThreadPoolExecutor(CHAINS) as pool:
        ends = list(pool.map(walk, few, range(len(few)), [short] * len(few)))
        best = min([first, *ends], key=lambda state: state.key)
        long = max(seconds - (time.monotonic() - begun), 0.0)
        again = range(_GRIDS, _GRIDS + CHAINS)
        ends = list(pool.map(walk, [best] * CHAINS, again, [long] * CHAINS))
    best = min([best, *ends], key=lambda state: state.key)
    if best.found.excess == 0.0:
        on_best(best.found)
    kept = [best, *grids[:_GRIDS]]
    return [state.found for state in kept]


def grid_solutions(problem: Problem, until: float = math.inf) -> list[Found]:
    """The best grids of those for which there is time until time.monotonic() is `until`, at least
    one of each shape; [] where piece_solutions has none."""
    if problem.graph.micro_batch.max(initial=-1) < 1 or len(problem.cluster.devices) < 2:
        return []
    pieces = Pieces(problem)
    if pieces.micro_batches < 2:
        return []
    grids = _without_alike(_grids(pieces, until, lambda found: None))
    return [state.found for state in grids[:_GRIDS]]


def few_solutions(problem: Problem) -> list[Found]:
    """A few grids, which take far less time than all; [] where piece_solutions has none."""
    if problem.graph.micro_batch.max(initial=-1) < 1 or len(problem.cluster.devices) < 2:
        return []
    pieces = Pieces(problem)
    if pieces.micro_batches < 2:
        return []
    return [pieces.cost(layout) for layout in few_grid_layouts(pieces)]


def _grids(pieces: Pieces, until: float, on_best: Callable[[Found], None]) -> list[_State]:
    """The grids, the shortest first: one of each shape, then all of the shape of which that one is
    shortest, and so on, as far as there is time until time.monotonic() is `until`."""
    shapes = list(grid_shapes(pieces))
    first_of = np.cumsum([0, *map(len, shapes)]).tolist()

    def simulated(at: int, layout: Layout) -> tuple[tuple[float, float], int, _State]:
        state = _State(layout, pieces.cost(layout))
        return state.key, at, state

    def in_time(at: int, layout: Layout) -> tuple[tuple[float, float], int, _State] | None:
        return simulated(at, layout) if time.monotonic() < until else None

    with ThreadPoolExecutor(CHAINS) as pool:
        of_shapes = list(pool.map(simulated, first_of, [shape[0] for shape in shapes]))
        found = list(of_shapes)
        for _, at, _ in sorted(of_shapes):
            best = min(found)[2].found
            if best.excess == 0.0:
                on_best(best)
            shape = shapes[first_of.index(at)]
            others = range(at + 1, at + len(shape))
            more = pool.map(in_time, others, shape[1:])
            found += [one for one in more if one is not None]
    # Grids of equal steps are in the order of grids.py.
    return [state for _, _, state in sorted(found)]


def _without_alike(states: Sequence[_State]) -> list[_State]:
    """The first of those that have the same layers on the same devices in the same order."""
    found: dict[tuple[bytes, bytes, float], _State] = {}
    for state in states:
        layout = state.layout
        place = layout.home.tobytes(), layout.turn.tobytes(), layout.lateness
        found.setdefault(place, state)
    return list(found.values())


def _annealed(
    pieces: Pieces, start: _State, seed: int, hot: float, seconds: float, states: int | None
) -> _State:
    """The best state of a walk from `start`. hot: its temperature at the begin. states: how many to
    look at, None: as many as there is time for."""
    chance = np.random.default_rng(seed)
    begun, looked = time.monotonic(), 0
    now = best = start
    while True:
        done = looked / (states or _MOST_STATES)
        if states is None:
            done = max(done, (time.monotonic() - begun) / max(seconds, 1e-9))
        if done >= 1.0:
            return best
        looked += 1
        layout = _moved(pieces, now.layout, start.layout, chance)
        tried = _State(layout, pieces.cost(layout))
        heat = hot * (1.0 - done) * now.found.cost
        worse = tried.found.cost - now.found.cost
        less = tried.found.excess <= now.found.excess
        if less and worse <= heat * -math.log(1.0 - chance.random()):
            now = tried
        if tried.key < best.key:
            best = tried


def _moved(pieces: Pieces, layout: Layout, start: Layout, chance: np.random.Generator) -> Layout:
    """start: a layout whose rows of devices moves may use."""
    one_column = bool((layout.home == layout.home[0]).all())
    part = _CUTS_PART_OF_ONE_COLUMN if one_column else _CUTS_PART
    if pieces.costing.bundles is not None and chance.random() < part:
        return replace(layout, cuts=(layout.cuts or USUAL_CUTS).moved(chance))
    if chance.random() < _URGENCY_PART:
        which = str(chance.choice(Urgency._fields))
        changed = layout.urgency._replace(**{which: not getattr(layout.urgency, which)})
        return replace(layout, urgency=changed)
    kind = int(chance.integers(10))
    if kind == 0:
        least, most = _LATENESS
        if chance.random() < 0.5:  # anew
            return replace(layout, lateness=least * (most / least) ** float(chance.random()))
        factor = float(2.0 ** chance.uniform(-2.0, 2.0))
        return replace(layout, lateness=min(max(layout.lateness, least) * factor, most))
    home = layout.home.copy()
    count, micro_batches = home.shape
    a = int(chance.integers(count))
    wide = 1 if chance.random() < 0.5 else int(chance.integers(1, max(2, count // 4)))
    some = slice(a, min(count, a + wide))
    if kind <= 4:  # a boundary between two stages moves
        beside = a - 1 if chance.random() < 0.5 else some.stop
        home[some] = home[min(max(beside, 0), count - 1)]
    elif kind <= 6:  # as another piece is now, or was in the grid
        source = home if kind == 5 else start.home
        home[some] = source[int(chance.integers(count))]
    elif kind == 7:  # all micro-batches meet: activations travel, weights stay
        home[some] = int(chance.integers(len(pieces.devices)))
    else:  # what one micro-batch has there, or all that are with it
        m = int(chance.integers(micro_batches))
        device = int(chance.integers(len(pieces.devices)))
        if chance.random() < 0.7:
            with_it = home[some] == home[some, m : m + 1]
            home[some] = np.where(with_it, device, home[some])
        else:
            home[some, m] = device
    return replace(layout, home=home)
