"""Engine `auto`, the default: several starts, then annealing; never worse than one device."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.engines import heft, units
from placewire.optimizer.engines.costing import Costing, Found
from placewire.optimizer.engines.engine import Engine
from placewire.optimizer.engines.levels import carried, undone
from placewire.optimizer.engines.packing import packed
from placewire.optimizer.engines.piece_search import piece_solutions
from placewire.optimizer.engines.pieces import has_pieces
from placewire.optimizer.engines.reporting import Clock, Reporter
from placewire.optimizer.engines.scoring import Scored, score
from placewire.optimizer.engines.search import Search
from placewire.optimizer.engines.single import best_single
from placewire.optimizer.engines.solution import TIE, Report, Solution
from placewire.optimizer.engines.structured import structured_starts
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.reductions.chain import apply_chain
from placewire.optimizer.reductions.contract import Reduced, Undo
from placewire.optimizer.reductions.written_updates import merge_updates

# The part of the time that whole pieces are searched, where a step has several micro-batches. On
# graphs of more operators than _MANY moves of single ones come to little.
_PIECES_PART, _PIECES_PART_OF_MANY, _MANY = 0.5, 0.7, 5_000
# A step of several micro-batches and more operators is searched in whole pieces alone. To prepare
# moves of single ones took 8 s for 224,000, and each move 0.2 s; to begin by the step's structure,
# which takes 28 simulations, took 8 s as well.
_WHOLE_PIECES_FROM = 40_000
# What is found in a reduced graph is simulated in the graph as given to be reported. Of more
# operators, this waits for so many times as long as it took: it takes 0.2 s for 200,000.
_REPORTS_RARELY_FROM, _REPORT_WAITS = 20_000, 20.0

# Makes a reduced problem with its undo; None where the reduction is not worth a search.
Level = Callable[[], Reduced | None]


def solve(problem: Problem, settings: SolveSettings, progress: Report | None = None) -> Solution:
    """Raises InfeasibleError where no placement within the memories was found."""
    until = time.monotonic() + settings.time_limit_seconds
    starts = costed_starts(problem)
    starts += _of_pieces(problem, settings, until, starts)
    return improve(problem, settings, progress, starts, until, lower_bound(problem).seconds)


def search(
    problem: Problem,
    levels: Sequence[Level],
    settings: SolveSettings,
    until: float,
    starts: Sequence[Solution],
    reporter: Reporter,
    clock: Clock,
    bound_seconds: float,
) -> tuple[Solution, list[Found]]:
    """Searches each reduced graph of `levels`, coarsest first, then the graph as given, from
    `starts`, from new starts and from what was found before. Ends when time.monotonic() is `until`
    or the settings' moves are used up. Returns the best, and what the last search began with: of
    those with a layout the best first. bound_seconds: no step of the problem is shorter."""
    cost = Costing(problem).cost
    # Where updates are written out, one operator of each gives better starts, and sooner.
    merged, unmerge = merge_updates(problem) if levels else apply_chain(problem, ())
    is_fine = merged is not problem
    begun = list(map(cost, starts))
    if is_fine:
        report = _reporting(problem, unmerge, reporter, until)
        pieces = _of_pieces(merged, settings, until, begun, lambda one: report(one.solution))
        of_pieces = [cost(undone(unmerge, one.solution)) for one in pieces]
    else:
        begun += costed_starts(problem)
        of_pieces = _of_pieces(
            problem, settings, until, begun, lambda one: reporter.known(incumbent=one.cost)
        )
    if of_pieces:
        clock.stage("pieces")
    begun = [*of_pieces, *begun]
    if begun:
        best_first = min(begun, key=lambda found: found.key)
        first = score(problem, best_first.solution, optimise_rates=False)
        if first.excess == 0.0:
            reporter.known(incumbent=first.step_seconds)
    moves = settings.moves
    for k, level in enumerate(levels):
        reduced = level()
        if reduced is None:
            continue
        small, undo = reduced
        share = _share(len(levels) - k, is_fine=is_fine)
        part = _part(replace(settings, moves=moves), until, share)
        carry = [carried(problem, small, undo, found.solution) for found in begun]
        end = time.monotonic() + part.time_limit_seconds
        report = _reporting(problem, undo, reporter, end)
        # A reduced graph counts memory too high, so that it may have no solution.
        with contextlib.suppress(InfeasibleError):
            begin = [*map(Costing(small).cost, carry), *costed_starts(small)]
            report(min(begin, key=lambda found: found.key).solution)
            # A reduced graph may have shorter steps than the one as given, whose bound says nothing
            # of it: under `thesis` its recorded sort is another.
            least = lower_bound(small).seconds
            found = undone(
                undo, improve(small, part, reporter.elsewhere, begin, end, least, report)
            )
            # By its own rates, it comes before one device in the next search, which may have time
            # for the first of its starts alone.
            begun.append(cost(found, found.rates if is_fine else None))
        clock.stage("solve")
        reporter.next_search()
        moves = None if moves is None or part.moves is None else max(1, moves - part.moves)
    # A merged graph counts memory too high, as a reduced one does.
    if is_fine and _none_fits(begun):
        begun += costed_starts(problem)
    left = _part(replace(settings, moves=moves), until, 1.0)
    best = improve(problem, left, reporter.search, begun, until, bound_seconds)
    clock.stage("refine" if "solve" in clock.stages else "solve")
    return best, begun


def _share(searches: int, *, is_fine: bool) -> float:
    """The part of the time for the first of so many searches of reduced graphs, each of which gets
    twice as much as the one before. So does the search of the graph as given; in a fine one, where
    a move takes far longer, it gets as much as the last of these."""
    of_given = 2.0 ** (searches - 1 if is_fine else searches)
    return 1.0 / float(2.0**searches - 1.0 + of_given)


def _reporting(
    problem: Problem, undo: Undo, reporter: Reporter, until: float
) -> Callable[[Solution], None]:
    """What reports a reduced problem's solutions, each with its step in the problem as given; of a
    large problem some, until time.monotonic() is `until`."""
    is_large = problem.graph.operator_count > _REPORTS_RARELY_FROM
    wait_until = -math.inf

    def report(solution: Solution) -> None:
        nonlocal wait_until
        began = time.monotonic()
        if is_large and not wait_until <= began < until:
            return
        found = score(problem, undone(undo, solution), optimise_rates=False)
        if found.excess == 0.0:
            reporter.known(incumbent=found.step_seconds)
        ended = time.monotonic()
        wait_until = ended + _REPORT_WAITS * (ended - began)

    return report


def _of_pieces(
    problem: Problem,
    settings: SolveSettings,
    until: float,
    begun: Sequence[Found],
    on_best: Callable[[Found], None] = lambda found: None,
) -> list[Found]:
    """begun: starts, of which those with a layout are searched beside the grids. on_best: called
    with shorter ones."""
    is_large = problem.graph.operator_count > _MANY
    share = _PIECES_PART_OF_MANY if is_large else _PIECES_PART
    # Where nothing fits the memories yet, moves of single operators may still find what does.
    if _is_vast(problem) and any(one.excess == 0.0 for one in begun):
        share = 1.0
    part = _part(settings, until, share)

    known = [one.layout for one in begun if one.layout is not None]
    seconds, moves = part.time_limit_seconds, part.moves
    return piece_solutions(problem, seconds, moves, settings.seed, on_best, known)


def _part(settings: SolveSettings, until: float, share: float) -> SolveSettings:
    left = max(until - time.monotonic(), 0.0)
    return replace(settings, time_limit_seconds=left).part(share)


def improve(
    problem: Problem,
    settings: SolveSettings,
    progress: Report | None,
    starts: Sequence[Found],
    until: float,
    bound_seconds: float,
    on_best: Callable[[Solution], None] = lambda solution: None,
) -> Solution:
    """The best of the starts and of what annealing finds from them before time.monotonic() is
    `until`. on_best: called with shorter feasible ones. Raises InfeasibleError where all exceed a
    memory."""
    alone = best_single(problem)
    if alone is not None:
        if len(problem.cluster.devices) == 1 or alone[1] * (1 - 2e-9) <= bound_seconds:
            return alone[0]
        starts = [*starts, Costing(problem).cost(alone[0])]
    first = min(starts, key=lambda start: start.key)
    late = settings.moves is None and time.monotonic() > until
    if _is_vast(problem) and (first.excess == 0.0 or late):
        found = score(problem, first.solution, optimise_rates=False)
    else:
        found = Search(problem, settings, progress, until, bound_seconds, on_best).run(starts)
    if found.excess > 0.0:
        raise InfeasibleError(_why_infeasible(problem, found))
    # In a tie one device is better.
    if alone is not None and alone[1] <= found.step_seconds * (1 + TIE):
        return alone[0]
    return found.solution


def of_merged(problem: Problem, find: Callable[[Problem], list[Found]]) -> list[Found]:
    """What `find` finds where each update is one operator, as solutions of the problem itself, and
    where none of these fits the memories, what it finds in the problem, too."""
    merged, unmerge = merge_updates(problem)
    if merged is problem:
        return find(problem)
    cost = Costing(problem).cost
    found = [cost(undone(unmerge, one.solution)) for one in find(merged)]
    return [*found, *find(problem)] if _none_fits(found) else found


def _none_fits(found: Sequence[Found]) -> bool:
    """Whether all exceed a memory."""
    return all(one.excess > 0.0 for one in found)


def costed_starts(problem: Problem) -> list[Found]:
    return list(map(Costing(problem).cost, starting_solutions(problem)))


def starting_solutions(problem: Problem) -> list[Solution]:
    """At least one: by structure, HEFT's and, in case these exceed a memory, packings."""
    rank = units.upward_rank(problem, units.typical_transfer_seconds(problem))
    costing = Costing(problem)
    found: list[Solution] = []
    if not _is_vast(problem):
        found = structured_starts(problem, lambda solution: costing.cost(solution).key)
    # Where HEFT finds no room, packings and annealing, which has a memory penalty, still may.
    with contextlib.suppress(InfeasibleError):
        found.append(heft.quick(problem))
    found += [Solution(device, rank, None) for device in packed(problem)]
    if not found:
        found.append(Solution(_fastest_able(problem), rank, None))
    return found


def _is_vast(problem: Problem) -> bool:
    return problem.graph.operator_count > _WHOLE_PIECES_FROM and has_pieces(problem)


def _fastest_able(problem: Problem) -> IntArray:
    """int64[n]: each unit on the device that runs it fastest, memory ignored."""
    unit = units.unit_of_operator(problem)
    seconds = np.stack([units.unit_sums(unit, column) for column in problem.seconds.T])
    fastest: IntArray = seconds.argmin(axis=0)[unit]
    return fastest


def _why_infeasible(problem: Problem, found: Scored) -> str:
    graph = problem.graph
    weights, memory = graph.weight_bytes.sum(), problem.cluster.memory_bytes
    return (
        f"no placement within the devices' memory was found; the best lacks {found.excess:.1%} of "
        f"one device's. The graph holds {weights / 2**20:.1f} MiB of weights, gradients and "
        f"optimizer state, the {len(memory)} devices have {memory.sum() / 2**20:.1f} MiB in all "
        f"(largest {memory.max() / 2**20:.1f} MiB); use more devices or memory, or a smaller batch"
    )


ENGINE = Engine(
    "several starts, annealing, rates by a linear program, a bound",
    solve,
    decides="devices, order, rates",
    sees="the problem's own model",
    memory="the simulated peak",
    unlike="yes",
)
