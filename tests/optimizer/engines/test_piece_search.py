"""The search of whole pieces of a step: from grids, and never worse than the best of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from placewire.optimizer.cluster import Cluster, Device
from placewire.optimizer.engines.costing import Costing, Found
from placewire.optimizer.engines.grids import grid_layouts, grid_shapes
from placewire.optimizer.engines.piece_search import grid_solutions, piece_solutions
from placewire.optimizer.engines.pieces import Pieces
from placewire.optimizer.engines.units import unit_of_operator
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from tests.drawn_examples import examples
from tests.optimizer.engines.test_grids import (
    WEIGHT,
    accumulated,
    require_placement,
    servers,
    with_micro_batches,
)

MOVES = 1_000


def uneven() -> Problem:
    return Problem(accumulated(5, weights=7), servers("cpu", "fast", "cpu"), sharing="even")


def best_grid(problem: Problem) -> tuple[float, float]:
    pieces = Pieces(problem)
    return min(pieces.cost(layout).key for layout in grid_layouts(pieces))


def same(one: list[Found], other: list[Found]) -> bool:
    return len(one) == len(other) and all(
        (a.device == b.device).all() and (a.priority == b.priority).all()
        for a, b in zip(one, other, strict=True)
    )


def test_a_search_is_better_than_its_best_grid_and_more_moves_do_not_harm() -> None:
    problem = uneven()
    found = [best_grid(problem)]
    for moves in (MOVES, 10 * MOVES):
        found.append(piece_solutions(problem, moves=moves, seed=1)[0].key)
    assert found[2] < found[0] and found[1] <= found[0]
    assert found[2][1] < found[0][1] * 0.95


def test_the_best_grids_come_after_the_answer() -> None:
    problem = uneven()
    keys = [one.key for one in piece_solutions(problem, moves=MOVES)]
    assert keys[0] <= keys[1] == best_grid(problem)
    assert keys[1:] == sorted(keys[1:]) and len(keys) == 1 + 8


def test_no_time_at_all_gives_the_best_of_one_grid_of_each_shape() -> None:
    problem = uneven()
    pieces = Pieces(problem)
    firsts = sorted(pieces.cost(shape[0]).key for shape in grid_shapes(pieces))
    assert piece_solutions(problem)[0].key == firsts[0]
    late = grid_solutions(problem, until=0.0)
    assert [one.key for one in late] == firsts[:8] and len(firsts) > 1


def test_with_time_all_grids_are_known_and_the_shortest_comes_first() -> None:
    problem = uneven()
    found = grid_solutions(problem)
    assert found[0].key == best_grid(problem)
    assert [one.key for one in found] == sorted(one.key for one in found) and len(found) == 8
    cost = Costing(problem).cost
    assert [cost(one.solution).key for one in found] == [one.key for one in found]


def test_a_known_layout_is_as_good_as_found() -> None:
    problem = uneven()
    long, *_ = piece_solutions(problem, moves=10 * MOVES, seed=1)
    assert long.layout is not None and long.key < best_grid(problem)
    again, *_ = piece_solutions(problem, known=[long.layout])
    assert again.layout is long.layout and again.key == long.key


def test_the_same_seed_and_moves_give_the_same_answer() -> None:
    problem = uneven()
    one, other = (piece_solutions(problem, 60.0, MOVES, seed=4) for _ in range(2))
    assert same(one, other)
    several = {piece_solutions(problem, moves=MOVES, seed=k)[0].cost for k in range(4)}
    assert len(several) > 1, "else the seed has no effect"


def test_every_shorter_step_is_reported() -> None:
    problem, shorter = uneven(), list[Found]()
    (first, *_) = piece_solutions(problem, moves=10 * MOVES, seed=1, on_best=shorter.append)
    said = [one.cost for one in shorter]
    assert said == sorted(said, reverse=True)
    assert best_grid(problem)[1] in said
    assert said[-1] == Costing(problem).cost(first.solution).cost


def small(on: Cluster, memory: int) -> Cluster:
    held = tuple(
        one.model_copy(
            update={"devices": tuple(Device(type=d.type, memory_bytes=memory) for d in one.devices)}
        )
        for one in on.servers
    )
    return on.model_copy(update={"servers": held})


@pytest.mark.parametrize("weights", [3, 9])
def test_a_memory_that_binds_is_kept_to(weights: int) -> None:
    """Data parallelism, which is best, sends all eight weights to each device."""
    graph, on = accumulated(4, weights=8), servers(*["cpu"] * 4, gigabits=[100.0] * 4)
    free = Pieces(Problem(graph, on, sharing="even"))
    problem = Problem(graph, small(on, weights * WEIGHT), sharing="even")
    costing, said = Costing(problem), list[Found]()
    shortest = min(grid_layouts(free), key=lambda layout: free.cost(layout).cost)
    assert costing.cost(free.solution(shortest)).excess > 0.0, "else the memory does not bind"
    first = piece_solutions(problem, moves=10 * MOVES, seed=1, on_best=said.append)[0]
    found = costing.cost(first.solution)
    assert found.excess == 0.0 and found.key <= best_grid(problem)
    assert said[-1].cost == found.cost > free.cost(shortest).cost
    timeline = simulate(problem, first.device, first.priority)
    assert (timeline.peak_memory_bytes <= problem.cluster.memory_bytes).all()


def test_what_fits_nowhere_is_not_reported_as_a_step() -> None:
    problem = Problem(accumulated(4), small(servers("cpu", "cpu"), WEIGHT // 2), sharing="even")
    said: list[Found] = []
    assert piece_solutions(problem, moves=MOVES, on_best=said.append)
    assert said == []


def test_one_micro_batch_or_one_device_has_no_pieces() -> None:
    assert piece_solutions(Problem(accumulated(1), servers("cpu", "cpu")), moves=MOVES) == []
    assert piece_solutions(Problem(accumulated(4), servers("cpu")), moves=MOVES) == []
    whole = accumulated(4)
    whole = replace(whole, micro_batch=np.full_like(whole.micro_batch, -1))
    assert piece_solutions(Problem(whole, servers("cpu", "cpu")), moves=MOVES) == []


def test_micro_batches_in_one_group_have_no_pieces() -> None:
    """All of a group are on one device, so that no micro-batch has one of its own."""
    graph = accumulated(2)
    one_group = replace(graph, colocation=np.zeros_like(graph.colocation))
    assert piece_solutions(Problem(one_group, servers("cpu", "cpu")), moves=MOVES) == []


@pytest.mark.hypothesis
def test_solutions_of_any_problem_are_placements_no_worse_than_a_grid() -> None:
    seen = [0]

    @settings(max_examples=examples(60), deadline=None, derandomize=True, database=None)
    @given(with_micro_batches())
    def holds(problem: Problem) -> None:
        found, unit = piece_solutions(problem, moves=200), unit_of_operator(problem)
        seen[0] += len(found)
        for one in found:
            require_placement(problem, unit, one.solution)
        if found:
            assert found[0].key <= best_grid(problem)

    holds()
    assert seen[0] > 5, "else nothing was looked at"
