"""Paths that use no NIC: links between unlike devices (Moirai), and host memory (model msr).
1 MB takes a second at the rate of 1 byte per microsecond."""

from __future__ import annotations

import numpy as np
import pytest

from placewire.optimizer.cluster import Cluster, Device, Link, Server
from placewire.optimizer.engines.best_sharing import place_under_best_sharing
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.rates.allocator import allocate, used_pairs
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graph
from tests.optimizer.problems import SHARINGS

MEGA = 1_000_000
TWO = graph({"A": 0.0, "B": 0.0, "C": 0.0, "D": 0.0}, [("A", ["C"], MEGA), ("B", ["D"], MEGA)])


def linked(where, source="s1/0", destination="s2/0", latency=0.5, rate=BYTE_PER_MICROSECOND):
    link = Link(
        source=source,
        destination=destination,
        setup_latency_seconds=latency,
        rate_bits_per_second=rate,
    )
    return where.model_copy(update={"links": (link,)})


def arrivals(problem, device, rates=None):
    timeline = simulate(problem, np.array(device), None, None, rates)
    assert all(m.rails == () for m in timeline.messages)
    assert not timeline.transmit_busy_seconds.any()
    return [m.finish_seconds for m in sorted(timeline.messages, key=lambda m: m.tensor)]


@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_link_is_first_come_under_every_sharing(sharing):
    # Each takes 0.5 + 1 s, the second's 0.5 beside the first, whatever the NICs (of a hundredth of
    # the rate) carry or were given.
    problem = Problem(TWO, linked(cluster(rates=(BYTE_PER_MICROSECOND / 100,))), sharing)
    assert arrivals(problem, [0, 0, 1, 1], np.zeros((2, 2, 1))) == pytest.approx([1.5, 2.5])
    free = Problem(TWO, problem.cluster, sharing, "thesis")
    assert arrivals(free, [0, 0, 1, 1], np.zeros((2, 2, 1))) == pytest.approx([1.5, 1.5])


def test_a_link_is_of_one_direction():
    problem = Problem(TWO, linked(cluster()), "unshaped")
    timeline = simulate(problem, np.array([1, 1, 0, 0]))
    assert timeline.messages[0].rails == (1.0,)
    assert timeline.messages[0].finish_seconds == pytest.approx(1.0)


def test_devices_without_nics_are_joined_by_links_alone():
    bare = linked(cluster(rates=()))
    for sharing in SHARINGS:
        problem = Problem(TWO, bare, sharing)
        assert arrivals(problem, [0, 0, 1, 1], np.zeros((2, 2, 0))) == pytest.approx([1.5, 2.5])
        assert simulate(problem, np.array([1, 1, 0, 0]), rates=np.zeros((2, 2, 0))).step_seconds \
            == np.inf  # fmt: skip


def test_a_linked_pair_takes_no_part_of_its_servers_rate():
    # s1/0 -> s2/0 has a link: s1/1 -> s2/1 has the servers' rate alone, and needs all of it.
    problem = Problem(TWO, linked(cluster(devices=2), latency=0.0), "strict")
    device = np.array([0, 1, 2, 3])
    assert used_pairs(problem, device) == [(0, 1)]
    assert used_pairs(problem, np.array([0, 0, 2, 2])) == []
    order = ((0,), (1,), (2,), (3,))
    rates = allocate(problem, device, order)
    timeline = simulate(problem, device, order=order, rates=rates)
    assert [m.finish_seconds for m in timeline.messages] == pytest.approx([1.0, 1.0])
    assert [m.rails for m in timeline.messages] == [(), (1.0,)]


def test_a_link_inside_a_server_replaces_its_inner_path():
    problem = Problem(TWO, linked(cluster(1, devices=2), destination="s1/1"), "job")
    assert arrivals(problem, [0, 0, 1, 1]) == pytest.approx([1.5, 2.5])
    assert arrivals(problem, [1, 1, 0, 0]) == pytest.approx([0.1, 0.2])


def host(*types, latency=0.0):
    return Cluster(
        servers=(
            Server(
                name="s1",
                devices=tuple(Device(type=kind, memory_bytes=10**9) for kind in types),
                nics=(),
            ),
        ),
        setup_latency_seconds=latency,
        intra_server_bits_per_second=BYTE_PER_MICROSECOND,
    )


class TestHostMemory:
    WHERE = host("accelerator", "accelerator", "cpu", "cpu", latency=7.0)

    def run(self, made, device, sharing="strict", where=WHERE):
        either = made.with_seconds(dict.fromkeys(("accelerator", "cpu"), made.seconds[:, 0]))
        return arrivals(Problem(either, where, sharing, "msr"), device)

    @pytest.mark.parametrize(
        ("source", "target", "took"), [(0, 1, 2.0), (0, 2, 1.0), (2, 0, 1.0), (2, 3, 0.0)]
    )
    def test_accelerators_pay_to_write_and_to_read(self, source, target, took):
        made = graph({"A": 1.0, "B": 0.0}, [("A", ["B"], MEGA)])
        for sharing in SHARINGS:
            assert self.run(made, [source, target], sharing) == pytest.approx([1.0 + took])

    def test_transfers_never_meet(self):
        assert self.run(TWO, [0, 0, 1, 1]) == pytest.approx([2.0, 2.0])

    def test_a_link_replaces_host_memory(self):
        where = linked(self.WHERE, destination="s1/1", latency=0.25)
        assert self.run(TWO, [0, 0, 1, 1], where=where) == pytest.approx([1.25, 1.25])

    def test_priorities_decide_as_in_contended(self):
        # L takes 3 s after A: A first 4 s, B first 5 s. Nothing is charged from CPU to CPU.
        made = graph({"A": 1.0, "B": 1.0, "L": 3.0}, [("A", ["L"], MEGA)])
        made = made.with_seconds(dict.fromkeys(("accelerator", "cpu"), made.seconds[:, 0]))
        problem = Problem(made, self.WHERE, "strict", "msr")
        steps = [
            simulate(problem, np.array([2, 2, 3]), np.array(priority)).step_seconds
            for priority in ([2.0, 1.0, 0.0], [1.0, 2.0, 0.0])
        ]
        assert steps == pytest.approx([4.0, 5.0])

    def test_several_servers_have_no_memory_in_common(self):
        with pytest.raises(ValueError, match="one server whose devices share its memory"):
            simulate(Problem(TWO, cluster(), "strict", "msr"), np.zeros(4, dtype=np.int64))


def test_a_cluster_without_nics_is_searched_and_checked_under_every_sharing():
    # A and B run side by side (2 s) rather than one after the other (4 s), though B's result must
    # cross a link of 0.5 s set-up for a tensor of nearly nothing.
    two = graph({"A": 2.0, "B": 2.0, "C": 0.0}, [("A", ["C"], 1), ("B", ["C"], 1)])
    bare, back = linked(cluster(rates=())), linked(cluster(rates=()), "s2/0", "s1/0")
    both = Cluster(
        **{name: getattr(bare, name) for name in Cluster.model_fields}
        | {"links": (*bare.links, *back.links)}
    )
    settings = SolveSettings(moves=500)
    best, every = place_under_best_sharing(Problem(two, both), SHARINGS, "auto", settings)
    assert best.server_pairs and not best.rates_bits_per_second
    assert [p.sharing for p in every] == list(SHARINGS)
    assert best.step_seconds == pytest.approx(2.5, abs=1e-3)
