"""The allocator: admissible, better than rules, and right where the optimum is known."""

from __future__ import annotations

import numpy as np
import pytest

from placewire.optimizer.network.nics import LEAST_PAIR_FRACTION, capacity_of, even_rates
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import allocate, starting_rates
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graph


def allocated(problem, device):
    device = np.array(device)
    first = simulate(problem, device, None, None, starting_rates(problem, device))
    rates = allocate(problem, device, first.order)
    return rates, simulate(problem, device, None, first.order, rates)


def fork(first: int, second: int):
    """A sends to B and to C at once; both matter."""
    return graph({"A": 1.0, "B": 0.0, "C": 0.0}, [("A", ["B"], first), ("A", ["C"], second)])


def test_two_readers_get_rates_in_proportion_to_their_bytes():
    # Both finish together: 300 kB and 900 kB of 1.2 MB at 1 MB/s in all, less no floor (both
    # directions' floors are on other NIC sides): 1 + 1.2 s.
    problem = Problem(fork(300_000, 900_000), cluster(3))
    rates, timeline = allocated(problem, [0, 1, 2])
    assert rates[0, 1, 0] == pytest.approx(0.25 * BYTE_PER_MICROSECOND, rel=5e-3)
    assert rates[0, 2, 0] == pytest.approx(0.75 * BYTE_PER_MICROSECOND, rel=5e-3)
    assert timeline.step_seconds == pytest.approx(2.2, rel=2e-3)


def test_transfers_of_one_path_get_rates_like_the_square_root_of_their_bytes():
    # A -> B (on s2), then A2 -> C (on s3) after B's answer of 0 bytes: 100 kB and 400 kB follow
    # each other out of s1: b in proportion 1 : 2, 0.1/(1/3) + 0.4/(2/3) = 0.9 s, not 1.0 (equal).
    made = graph(
        {"A": 0.0, "B": 0.0, "A2": 0.0, "C": 0.0},
        [("A", ["B"], 100_000), ("B", ["A2"], 0), ("A2", ["C"], 400_000)],
    )
    rates, timeline = allocated(Problem(made, cluster(3)), [0, 1, 0, 2])
    assert rates[0, 1, 0] == pytest.approx(BYTE_PER_MICROSECOND / 3, rel=2e-2)
    assert timeline.step_seconds == pytest.approx(0.9, rel=1e-3)


def test_used_pairs_and_their_reverse_keep_a_floor_and_unused_pairs_have_nothing():
    problem = Problem(fork(300_000, 900_000), cluster(4, (8e6, 16e6)))
    rates, _ = allocated(problem, [0, 1, 2])
    floor = LEAST_PAIR_FRACTION * np.array([8e6, 16e6]) * (1 - 1e-9)
    for pair in ((0, 1), (1, 0), (0, 2), (2, 0)):
        assert (rates[pair] >= floor).all()
    assert not rates[3].any()
    assert not rates[:, 3].any()
    assert not rates[1, 2].any()


def test_the_receiving_nic_limits_too_except_in_thesis():
    # Two senders into one receiver: each gets half, though its own NIC could do all.
    made = graph({"A": 0.0, "B": 0.0, "C": 0.0}, [("A", ["C"], 500_000), ("B", ["C"], 500_000)])
    _, both = allocated(Problem(made, cluster(3)), [0, 1, 2])
    assert both.step_seconds == pytest.approx(1.0, rel=2e-3)
    _, thesis = allocated(Problem(made, cluster(3), model="thesis"), [0, 1, 2])
    assert thesis.step_seconds == pytest.approx(0.5, rel=2e-3)


def test_crossed_nics_are_decided_per_rail():
    # NICs of 10 and 1 face NICs of 1 and 10: the sums match, but only 1 + 1 can pass.
    made = graph({"A": 0.0, "B": 0.0}, [("A", ["B"], 2_000_000)])
    document = cluster(2, (8e7, 8e6)).model_dump()
    document["servers"][1]["nics"][0]["rate_bits_per_second"] = 8e6
    document["servers"][1]["nics"][1]["rate_bits_per_second"] = 8e7
    problem = Problem(made, type(cluster()).model_validate(document))
    rates, timeline = allocated(problem, [0, 1])
    assert rates[0, 1].tolist() == pytest.approx([8e6, 8e6])
    assert timeline.step_seconds == pytest.approx(1.0)


def test_even_rates_are_admissible_on_unlike_rails():
    where = cluster(4, (3e6, 6e6))
    rates = even_rates(capacity_of(where, where.nic_rates))
    assert rates[0, 1].tolist() == [1e6, 2e6]
    assert rates.sum(axis=1).max(axis=0).tolist() == [3e6, 6e6]


def test_nothing_is_allocated_where_no_servers_talk():
    problem = Problem(fork(1, 1), cluster(3))
    assert not allocate(problem, np.zeros(3, dtype=np.int64), ((0, 1, 2), (), ())).any()


class TestNccl:
    """Messages are cut equally: k rails carry k times the slowest of them."""

    def allocated(self, rails, sharing):
        made = graph({"A": 0.0, "B": 0.0}, [("A", ["B"], 1_200_000)])
        problem = Problem(made, cluster(2, rails), sharing, backend="nccl")
        return allocated(problem, [0, 1])

    @pytest.mark.parametrize("sharing", ["strict", "guarantee"])
    def test_a_slow_rail_is_left_out(self, sharing):
        # Rails of 1 and 3 MB/s: both are worth 2, the fast one alone 3.
        rates, timeline = self.allocated((8e6, 24e6), sharing)
        assert rates[0, 1].tolist() == pytest.approx([0.0, 24e6])
        assert timeline.messages[0].rails == (0.0, 1.0)
        assert timeline.step_seconds == pytest.approx(0.4)

    @pytest.mark.parametrize("sharing", ["strict", "guarantee"])
    def test_a_nearly_equal_rail_is_used_and_the_faster_one_held_back(self, sharing):
        # Rails of 2 and 3 MB/s: both together are worth 4.
        rates, timeline = self.allocated((16e6, 24e6), sharing)
        assert timeline.messages[0].rails == (0.5, 0.5)
        assert timeline.step_seconds == pytest.approx(0.3)
        if sharing == "strict":
            assert rates[0, 1].tolist() == pytest.approx([16e6, 16e6])

    def test_the_program_gives_all_rails_of_a_pair_one_rate(self):
        problem = Problem(fork(300_000, 900_000), cluster(3, (8e6, 8e6)), backend="nccl")
        rates, timeline = allocated(problem, [0, 1, 2])
        assert rates[0, 1, 0] == pytest.approx(rates[0, 1, 1], rel=1e-6)
        assert rates[0, 1, 0] == pytest.approx(0.25 * 8e6, rel=5e-3)
        assert timeline.step_seconds == pytest.approx(1.6, rel=2e-3)


def test_guarantees_are_decided_by_the_program_and_beat_even_ones():
    # A sends 900 kB to s2 and 100 kB to s3, where a third server sends 900 kB as well. Even
    # minimums let s1 have half of s3; the program keeps it for the large one.
    made = graph(
        {"A": 0.0, "Z": 0.0, "B": 0.0, "C": 0.0, "D": 0.0},
        [("A", ["B"], 900_000), ("A", ["C"], 100_000), ("Z", ["D"], 900_000)],
    )
    problem = Problem(made, cluster(4), "guarantee")
    device = np.array([0, 3, 1, 2, 2])
    rates, timeline = allocated(problem, device)
    even = simulate(problem, device, None, timeline.order, even_rates(problem.usable))
    assert timeline.step_seconds == pytest.approx(1.0, rel=3e-2)
    assert even.step_seconds > 1.5
    capped = simulate(Problem(made, cluster(4)), device, None, timeline.order, rates)
    assert timeline.step_seconds <= capped.step_seconds
