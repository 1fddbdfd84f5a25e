"""check() of what a placement says of the variants that it was compared with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placewire.optimizer.check.check import check
from placewire.optimizer.commands.placing import place_best
from placewire.optimizer.network.sharings import part_of_bound
from placewire.optimizer.placement import Placement
from placewire.optimizer.problem import Problem, SolveSettings
from tests.optimizer.cases import cluster, graph
from tests.optimizer.peers.steps import chain

GRAPHS = [chain(1), chain(2), chain(4)]
NAMES = ["whole", "halves", "quarters"]


@pytest.fixture(scope="module")
def placed() -> Placement:
    problems = [Problem(graph, cluster(2, (8e8,))) for graph in GRAPHS]
    _, placement, _ = place_best(NAMES, problems, "auto", "job", SolveSettings(moves=200))
    assert sorted(one.name for one in placement.variants) == sorted(NAMES)
    return placement


def graph_of(placement: Placement):
    return next(one for one in GRAPHS if one.structure_hash == placement.structure_hash)


def said(placement: Placement, variants=None) -> list[str]:
    return [str(one) for one in check(graph_of(placement), placement, variants=variants)]


def changed(placement: Placement, *, taken: bool, **update) -> Placement:
    """With another figure of the variant that was taken, or else of the first other one."""
    variants = list(placement.variants)
    of_taken = [one.structure_hash == placement.structure_hash for one in variants]
    k = of_taken.index(taken)
    variants[k] = variants[k].model_copy(update=update)
    return placement.model_copy(update={"variants": tuple(variants)})


def other(placement: Placement):
    return next(v for v in placement.variants if v.structure_hash != placement.structure_hash)


def test_what_a_search_writes_holds_with_and_without_the_graphs(placed: Placement) -> None:
    assert said(placed) == []
    assert said(placed, GRAPHS) == []
    rest = [one for one in GRAPHS if one.structure_hash != placed.structure_hash]
    assert said(placed, rest) == []


def test_the_least_bound_is_that_of_all_variants(placed: Placement) -> None:
    assert placed.least_bound_seconds == min(one.bound_seconds for one in placed.variants)


@pytest.mark.parametrize("key", ["step_seconds", "single_device_seconds"])
def test_a_bound_above_a_step_that_is_known_is_false(placed: Placement, key: str) -> None:
    bound = other(placed).bound_seconds
    wrong = changed(placed, taken=False, **{"step_seconds": None, key: bound / 2})
    assert any(f"{other(placed).name}.bound_seconds" in line for line in said(wrong))
    assert said(changed(placed, taken=False, step_seconds=None)) == []


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -1.0])
def test_a_bound_is_a_number_of_seconds(placed: Placement, bound: float) -> None:
    (line,) = said(changed(placed, taken=False, bound_seconds=bound, step_seconds=None))
    assert line == f"variants.{other(placed).name}.bound_seconds: says {bound!r}"


@pytest.mark.parametrize(
    "key", ["operators", "step_seconds", "bound_seconds", "single_device_seconds"]
)
def test_the_variant_that_was_taken_says_what_its_placement_says(
    placed: Placement, key: str
) -> None:
    found = said(changed(placed, taken=True, **{key: 0}))
    assert any(f".{key}: says 0, the placement of it" in line for line in found)


def test_a_placement_found_with_better_times_says_its_own_figures(placed: Placement) -> None:
    """A plan's variant is profiled again after it was taken."""
    times = {"step_seconds": 0.5, "bound_seconds": 0.25, "single_device_seconds": 0.75}
    again = placed.model_copy(update=times).with_variants(placed.variants)
    (taken,) = [v for v in again.variants if v.structure_hash == placed.structure_hash]
    assert {key: getattr(taken, key) for key in times} == times
    assert other(again) == other(placed)


def test_a_placement_of_none_of_its_variants_is_refused(placed: Placement) -> None:
    less = placed.model_copy(update={"variants": (other(placed),)})
    assert said(less) == ["variants: none of them is the graph that is placed"]


@pytest.mark.parametrize("key", ["name", "structure_hash"])
def test_no_variant_is_there_twice(placed: Placement, key: str) -> None:
    first = placed.variants[0]
    others = [one for one in placed.variants if one is not first]
    twice = (first, *(one.model_copy(update={key: getattr(first, key)}) for one in others))
    found = said(placed.model_copy(update={"variants": twice}))
    assert f"variants: {key} {getattr(first, key)!r} is given to 3 variants" in found


def test_with_the_graphs_a_bound_that_nothing_proves_is_found(placed: Placement) -> None:
    """Also where it is below each step that is known, and so may seem true."""
    one = other(placed)
    assert one.single_device_seconds is not None
    between = (one.bound_seconds + one.single_device_seconds) / 2
    wrong = changed(placed, taken=False, bound_seconds=between, step_seconds=None)
    assert said(wrong) == []
    (line,) = said(wrong, GRAPHS)
    assert line.startswith(f"variants.{one.name}.bound_seconds: says {between!r}, only ")


def test_with_the_graphs_operators_and_one_device_are_counted_again(placed: Placement) -> None:
    wrong = changed(placed, taken=False, operators=1, single_device_seconds=9.5)
    found = said(wrong, GRAPHS)
    assert [line.split(": ")[0].rpartition(".")[2] for line in found] == [
        "operators",
        "single_device_seconds",
    ]


def test_the_graphs_are_those_of_the_variants(placed: Placement) -> None:
    one = other(placed)
    known = [graph for graph in GRAPHS if graph.structure_hash != one.structure_hash]
    found = said(placed, [*known, chain(8)])
    assert found == [
        f"variants: the graph {chain(8).structure_hash[:12]}… is none of them",
        f"variants.{one.name}: no graph was given that is {one.structure_hash[:12]}…",
    ]


def test_a_variant_that_fits_nowhere_was_not_compared(placed: Placement) -> None:
    large = replace(chain(8), weight_bytes=chain(8).weight_bytes + 10**13)
    assert said(placed, [*GRAPHS, large]) == []


def test_the_bounds_of_variants_hold_under_the_sharing_that_is_taken() -> None:
    """Without shaping the job may carry the whole NIC beside a neighbour, and else 80 % of it. No
    two operators fit on one device, so that each second of bytes counts."""
    heavy = dict.fromkeys("AB", 8 << 20)
    sends = [("A", ["B"], 10**6)]
    whole = graph({"A": 1.0, "B": 1.0}, sends, weight_bytes=heavy)
    cut = graph({"A": 1.0, "B": 0.9, "C": 0.1}, sends, weight_bytes=heavy)
    neighbour = {"background_bits_per_second": 8e6}
    servers = tuple(
        one.model_copy(update={"nics": tuple(n.model_copy(update=neighbour) for n in one.nics)})
        for one in cluster(2, memory=9 << 20).servers
    )
    busy = cluster(2, memory=9 << 20).model_copy(update={"servers": servers})
    problems = [Problem(one, busy) for one in (whole, cut)]
    assert part_of_bound(busy, 0.8, "job", "unshaped") == pytest.approx(0.8)
    assert part_of_bound(busy, 0.8, "unshaped", "job") == 1.0
    settings = SolveSettings(moves=100)
    _, _, considered = place_best(["whole", "cut"], problems, "auto", "auto", settings)
    assert "unshaped" in {one.sharing for one in considered}
    for one in considered:
        of = next(g for g in (whole, cut) if g.structure_hash == one.structure_hash)
        assert [str(v) for v in check(of, one, variants=[whole, cut])] == [], one.sharing
        if one.sharing == "unshaped":
            shared = next(other for other in considered if other.sharing == "job")
            told, known = (
                next(v.bound_seconds for v in p.variants if v.structure_hash != one.structure_hash)
                for p in (one, shared)
            )
            assert told == pytest.approx(0.8 * known), "the other variant's"
