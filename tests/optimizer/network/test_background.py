"""A neighbour on the NICs: how it slows the job, what the network keeps for the job, and what the
neighbour gets. NICs carry 1 byte per microsecond, so that 1 MB takes a second."""

from __future__ import annotations

import numpy as np
import pytest

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.problem import Problem
from placewire.optimizer.rates.allocator import allocate, starting_rates
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graph

MEGA = 1_000_000
FORK = graph({"A": 0.0, "B": 0.0, "C": 0.0}, [("A", ["B"], MEGA), ("A", ["C"], MEGA)])
ONE = graph({"A": 1.0, "B": 0.5}, [("A", ["B"], MEGA)])


def beside(part, servers=2) -> Cluster:
    """A cluster on whose first server a neighbour wants this part of the NIC, in each direction."""
    document = cluster(servers).model_dump()
    document["servers"][0]["nics"][0]["background_bits_per_second"] = part * BYTE_PER_MICROSECOND
    return Cluster.model_validate(document)


def transfer_seconds(problem, rates=None):
    timeline = simulate(problem, np.arange(problem.graph.operator_count), None, None, rates)
    return [m.finish_seconds - m.queued_seconds for m in timeline.messages]


@pytest.mark.parametrize(("wants", "left"), [(0.5, 0.5), (0.8, 0.2), (0.9, 1 / 9), (7.0, 1 / 9)])
def test_unshaped_one_flow_competes_with_eight(wants, left):
    problem = Problem(ONE, beside(wants), "unshaped")
    assert transfer_seconds(problem) == pytest.approx([1 / left])
    # Under the thesis' model, where transfers never meet, each has what one alone has here.
    assert transfer_seconds(Problem(ONE, beside(wants), "unshaped", "thesis")) == pytest.approx(
        [1 / left]
    )


def test_unshaped_two_flows_get_two_tenths_of_a_greedy_neighbours_nic():
    problem = Problem(FORK, beside(5.0, 3), "unshaped")
    assert transfer_seconds(problem) == pytest.approx([10.0, 10.0])
    # A neighbour that wants 0.6 has 8 flows of 0.075, which leaves 0.2 for each of the job's two.
    problem = Problem(FORK, beside(0.6, 3), "unshaped")
    assert transfer_seconds(problem) == pytest.approx([5.0, 5.0])


def test_unshaped_the_neighbour_squeezes_the_receiving_side_as_well():
    made = graph({"B": 0.5, "A": 1.0}, [("A", ["B"], MEGA)])
    assert transfer_seconds(Problem(made, beside(0.75), "unshaped")) == pytest.approx([4.0])


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "even"])
@pytest.mark.parametrize(("wants", "left"), [(0.1, 0.9), (0.5, 0.8), (7.0, 0.8)])
def test_shaped_the_job_has_what_is_left_and_what_it_is_entitled_to(sharing, wants, left):
    problem = Problem(ONE, beside(wants), sharing)
    device = np.arange(2)
    rates = starting_rates(problem, device) if sharing in ("strict", "guarantee") else None
    assert transfer_seconds(problem, rates) == pytest.approx([1 / left], rel=1e-6)


@pytest.mark.parametrize("sharing", ["strict", "guarantee"])
def test_no_rates_above_what_the_job_may_count_on(sharing):
    problem = Problem(FORK, beside(0.7, 3), sharing, floor=0.5)
    device = np.arange(3)
    start = starting_rates(problem, device)
    order = simulate(problem, device, None, None, start).order
    for rates in (start, allocate(problem, device, order)):
        assert rates.sum(axis=1)[0, 0] == pytest.approx(0.5 * BYTE_PER_MICROSECOND)
        assert (rates.sum(axis=0) <= problem.usable_nic_rates * (1 + 1e-9)).all()


class TestWhatTheNeighbourGets:
    """Bits transmitted and received on the first server's NIC, in MB."""

    def megabytes(self, problem, rates=None):
        timeline = simulate(problem, np.array([0, 1]), None, None, rates)
        assert not timeline.background_bits[1].any()
        return timeline.step_seconds, timeline.background_bits[0, 0] / 8 / MEGA

    def test_unshaped_and_greedy(self):
        # 1 s alone, 9 s with 8/9 of the transmit side, 0.5 s alone; the receive side throughout.
        step, got = self.megabytes(Problem(ONE, beside(5.0), "unshaped"))
        assert step == pytest.approx(10.5)
        assert got == pytest.approx((1 + 8 + 0.5) + 10.5)

    def test_unshaped_and_content(self):
        step, got = self.megabytes(Problem(ONE, beside(0.25), "unshaped"))
        assert got == pytest.approx(2 * 0.25 * step)

    def test_under_a_job_that_takes_what_it_is_entitled_to(self):
        # The transfer takes 1.25 s at 0.8; the neighbour has 0.2 of the transmit side meanwhile.
        for sharing in ("job", "even", "guarantee", "strict"):
            rates = np.zeros((2, 2, 1))
            rates[0, 1] = 0.8 * BYTE_PER_MICROSECOND
            step, got = self.megabytes(Problem(ONE, beside(0.5), sharing), rates)
            assert step == pytest.approx(1 + 1.25 + 0.5)
            assert got == pytest.approx((0.5 + 1.25 * 0.2 + 0.25) + 0.5 * 2.75)

    def test_set_up_takes_nothing_from_it(self):
        document = beside(0.5).model_dump() | {"setup_latency_seconds": 2.0}
        quiet = Cluster.model_validate(document)
        rates = np.full((2, 2, 1), 0.8 * BYTE_PER_MICROSECOND)
        for sharing in ("job", "strict"):
            step, got = self.megabytes(Problem(ONE, quiet, sharing), rates)
            assert step == pytest.approx(1 + 2 + 1.25 + 0.5)
            assert got == pytest.approx((1.5 + 1.25 * 0.2 + 0.25) + 0.5 * 4.75)
