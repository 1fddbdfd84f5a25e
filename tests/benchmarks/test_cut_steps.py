"""What is drawn of steps in parts has everything with everything that may go wrong together."""

from __future__ import annotations

from benchmarks.job.exact import RANKS
from benchmarks.job.exact_parts import BATCH, CUT, MICRO_BATCHES, RAILS, SHARDS, cut_steps

STEPS = cut_steps()
PLACEMENTS = [(step, drawn) for step in STEPS for drawn in step.placements]
# Of placements or models; a draw that has two of each kind is no accident of one seed.
SEVERAL = 5


def test_more_than_a_hundred_placements_of_many_models_are_drawn() -> None:
    assert MICRO_BATCHES == (2, 3, 4, 8) and RANKS == (2, 3, 4) and len(CUT) >= 8
    assert all(BATCH % count == 0 for count in MICRO_BATCHES)
    assert len({(step, drawn) for step, drawn in PLACEMENTS}) == len(PLACEMENTS) >= 100


def test_every_model_meets_every_number_of_parts_of_shards_and_of_ranks() -> None:
    for name in CUT:
        own = [step for step in STEPS if step.model == name]
        assert {step.micro_batches for step in own} == {*MICRO_BATCHES}
        assert {step.shards for step in own} == {*SHARDS}
        assert all({drawn.ranks for drawn in step.placements} == {*RANKS} for step in own)


def test_every_number_of_parts_meets_every_number_of_shards() -> None:
    for count in MICRO_BATCHES:
        of = [step.shards for step in STEPS if step.micro_batches == count]
        assert {*of} == {*SHARDS} and sum(shards > 1 for shards in of) >= SEVERAL


def test_every_number_of_ranks_and_of_parts_meets_one_rail_and_two() -> None:
    for rails in (RAILS[:1], RAILS):
        for ranks in RANKS:
            assert sum((d.ranks, d.rails) == (ranks, rails) for _, d in PLACEMENTS) >= SEVERAL
        for count in MICRO_BATCHES:
            found = [s for s, d in PLACEMENTS if (s.micro_batches, d.rails) == (count, rails)]
            assert len(found) >= SEVERAL


def test_every_number_of_ranks_meets_each_way_to_draw_a_placement() -> None:
    """A seed decides whether operators or stretches of them get a device, and whether there are
    bundles."""
    for ranks in RANKS:
        seeds = [drawn.seed for _, drawn in PLACEMENTS if drawn.ranks == ranks]
        for kind in ((0, False), (0, True), (1, False), (1, True)):
            found = [seed for seed in seeds if (seed % 2, bool(seed % 3)) == kind]
            assert len(found) >= 2, (ranks, kind)
