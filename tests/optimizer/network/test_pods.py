"""Uplinks of pods under each sharing, against times and rates worked by hand.

s1 and s2 are one pod, s3 and s4 the other. A NIC carries 1 byte per microsecond, so that 1 MB takes
a second alone; an uplink carries as much unless a test says otherwise.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Cluster, Device, Pod, Uplink
from placewire.optimizer.engines.place import place
from placewire.optimizer.explain.explanation import explain
from placewire.optimizer.explain.explanation_lines import explanation_lines
from placewire.optimizer.explain.summary import placement_lines
from placewire.optimizer.explain.uplinks import uplink_words, uplinks_used
from placewire.optimizer.explain.what_if import PlacementArrays, changes
from placewire.optimizer.network.guarantee import lending_ceilings
from placewire.optimizer.network.nics import even_rates, network_limits, widest_rates
from placewire.optimizer.network.script_allocation import allocate, even_traffic
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.rates.allocator import allocate as best_rates
from placewire.optimizer.rates.allocator import equal_rates, starting_rates, used_pairs
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graph, podded
from tests.optimizer.check.checked_placements import placement_of
from tests.optimizer.problems import SHARINGS as NAMES

MEGA = 1_000_000
ROUNDING = 1 + 1e-9


def sends(*ends: tuple[int, int]):
    """(graph, device): one message of 1 MB for each (source, destination), all ready at 0."""
    names = [(f"p{k}", f"c{k}") for k in range(len(ends))]
    seconds = {name: 0.0 for pair in names for name in pair}
    made = graph(seconds, [(p, [c], MEGA) for p, c in names])
    return made, np.array([d for pair in ends for d in pair])


class TestTimes:
    @pytest.mark.parametrize("sharing", ["job", "unshaped"])
    def test_two_senders_share_the_uplink_and_a_pair_within_the_pod_does_not(self, sharing):
        made, device = sends((0, 2), (1, 3))
        assert simulate(Problem(made, podded(), sharing), device).step_seconds == pytest.approx(2.0)
        flat = Problem(made, cluster(4), sharing)
        assert simulate(flat, device).step_seconds == pytest.approx(1.0)
        made, device = sends((0, 1), (2, 3))
        assert simulate(Problem(made, podded(), sharing), device).step_seconds == pytest.approx(1.0)

    @pytest.mark.parametrize("sharing", ["job", "unshaped"])
    def test_the_directions_of_an_uplink_do_not_disturb_each_other(self, sharing):
        made, device = sends((0, 2), (3, 1))
        assert simulate(Problem(made, podded(), sharing), device).step_seconds == pytest.approx(1.0)

    def test_what_a_narrow_uplink_leaves_of_a_nic_goes_to_the_next_message(self):
        # The urgent message for s3 gets 0.25 of s1's NIC, and the one for s2 the other 0.75.
        made = graph(
            {"p0": 0.0, "c0": 9.0, "p1": 0.0, "c1": 0.0},
            [("p0", ["c0"], MEGA // 4), ("p1", ["c1"], 3 * MEGA // 4)],
        )
        timeline = simulate(Problem(made, podded(0.25), "job"), np.array([0, 2, 0, 1]))
        arrived = [message.finish_seconds for message in timeline.messages]
        assert arrived == pytest.approx([1.0, 1.0])

    def test_decided_rates_fit_into_the_uplink_and_are_the_best(self):
        # Both messages together take 2 s over the uplink, whoever has more of it.
        made, device = sends((0, 2), (1, 3))
        problem = Problem(made, podded(), "strict")
        order = simulate(problem, device, rates=starting_rates(problem, device)).order
        rates = best_rates(problem, device, order)
        assert rates[:2, 2:].sum() <= BYTE_PER_MICROSECOND * ROUNDING
        found = simulate(problem, device, order=order, rates=rates)
        assert found.step_seconds == pytest.approx(2.0, rel=2e-3)

    @pytest.mark.parametrize("model", ["contended", "thesis"])
    def test_a_message_alone_is_not_faster_than_its_uplink(self, model):
        made, device = sends((0, 2))
        problem = Problem(made, podded(0.5), "job", model)
        assert simulate(problem, device).step_seconds == pytest.approx(2.0)


class TestRates:
    def test_an_even_split_is_of_nics_and_of_uplinks(self):
        # A NIC has three others, an uplink of 1.0 joins four pairs.
        rates = even_rates(Problem(sends((0, 2))[0], podded(), "even").usable)[:, :, 0]
        assert rates[0].tolist() == pytest.approx([0.0, 8e6 / 3, 2e6, 2e6])

    def test_uplinks_that_carry_more_than_all_nics_change_nothing(self):
        wide, flat = (Problem(sends((0, 2))[0], of) for of in (podded(9.0), cluster(4)))
        for rates in (widest_rates, even_rates):
            assert (rates(wide.usable) == rates(flat.usable)).all()
        assert (wide.least_rates == flat.least_rates).all()

    def test_what_an_uplink_has_to_spare_is_lent_in_proportion(self):
        problem = Problem(sends((0, 2))[0], podded(0.6), "guarantee")
        minimums = np.zeros((4, 4, 1))
        minimums[0, 2, 0], minimums[1, 3, 0], minimums[0, 1, 0] = 0.8e6, 1.6e6, 0.8e6
        limits = network_limits(problem.usable)
        highest = lending_ceilings(
            problem.usable_nic_rates, limits.groups, limits.capacity, minimums
        )[:, :, 0]
        # The uplink has 4.8e6, of which 2.4e6 are minimums: twice as much for each pair.
        assert (highest[0, 2], highest[1, 3]) == pytest.approx((1.6e6, 3.2e6))
        assert highest[0, 1] == pytest.approx(8e6), "within the pod only NICs limit"

    @pytest.mark.parametrize("count", [2, 12])
    def test_the_least_rates_of_many_pairs_take_at_most_half_of_an_uplink(self, count):
        plain = cluster(2 * count)
        names = [server.name for server in plain.servers]
        uplinks = (Uplink(rail="a", rate_bits_per_second=BYTE_PER_MICROSECOND),)
        pods = tuple(
            Pod(name=name, servers=tuple(some), uplinks=uplinks)
            for name, some in (("p1", names[:count]), ("p2", names[count:]))
        )
        problem = Problem(sends((0, 1))[0], plain.model_copy(update={"pods": pods}))
        assert problem.least_rates[:count, count:].sum() <= BYTE_PER_MICROSECOND / 2 * ROUNDING
        assert (problem.least_rates[0, 1:] > 0).all()

    @pytest.mark.parametrize("uplink", [0.3, 1.0, 5.0])
    def test_no_rule_for_rates_overloads_an_uplink(self, uplink):
        made, device = sends((0, 2), (1, 3), (2, 1), (0, 1))
        problem = Problem(made, podded(uplink), "strict")
        limits = network_limits(problem.usable)
        for rates in (
            starting_rates(problem, device),
            equal_rates(problem, used_pairs(problem, device)),
        ):
            assert (limits.load(rates) <= limits.capacity * ROUNDING).all()
            assert rates[0, 2, 0] > 0

    @pytest.mark.parametrize("sharing", NAMES)
    def test_a_script_s_rates_fit_into_the_uplinks(self, sharing):
        where = podded(0.5)
        found = allocate(where, even_traffic(where), sharing, 0.8)
        across = [
            rate
            for s, t, _, rate in found.rates_bits_per_second
            if s in ("s1", "s2") and t in ("s3", "s4")
        ]
        if sharing in ("job", "unshaped"):
            assert not across
        else:
            assert sum(across) == pytest.approx(BYTE_PER_MICROSECOND / 2)
        policy = SHARINGS[sharing]
        ceilings = [q.maximum for q in policy.queues(found) if not q.for_the_job]
        assert all(most is not None and most <= 8e6 * ROUNDING for most in ceilings)


class TestChecks:
    def test_rates_that_overload_an_uplink_are_refused(self):
        made, device = sends((0, 2), (1, 3))
        placement = placement_of(Problem(made, podded(), "strict"), device)
        assert check(made, placement) == ()
        rows = tuple(
            (s, t, rail, 5e6 if (s, t) in (("s1", "s3"), ("s2", "s4")) else rate)
            for s, t, rail, rate in placement.rates_bits_per_second
        )
        overloaded = placement.model_copy(update={"rates_bits_per_second": rows})
        assert [str(found) for found in check(made, overloaded)] == [
            "rates_bits_per_second.p1.a: 10000000 bit/s in all leaves pod p1; its uplink carries "
            "8000000 bit/s each way",
            "rates_bits_per_second.p2.a: 10000000 bit/s in all enters pod p2; its uplink carries "
            "8000000 bit/s each way",
        ]

    @pytest.mark.parametrize("sharing", NAMES)
    def test_a_step_that_the_uplink_makes_longer_is_recomputed(self, sharing):
        """The times of a placement on a network without pods do not hold with them."""
        made, device = sends((0, 2), (1, 3))
        flat = placement_of(Problem(made, cluster(4), sharing), device)
        assert check(made, flat) == ()
        moved = flat.model_copy(update={"cluster": podded(0.5)})
        assert check(made, moved)


class TestBounds:
    def test_what_no_pod_has_memory_for_must_cross_an_uplink(self):
        """A and B of 60 bytes each fit together into no pod of 110, so that 1 MB crosses an uplink
        of 0.1 bytes a microsecond: 10 s. A pair within a pod would take 1 s for it."""
        made = graph(
            {"A": 0.0, "B": 0.0}, [("A", ["B"], MEGA)], weight_bytes={"A": 60, "B": 60},
        )  # fmt: skip
        roomy = podded(0.1)
        servers = tuple(
            server.model_copy(update={"devices": (Device(type="cpu", memory_bytes=memory),)})
            for server, memory in zip(roomy.servers, (100, 10, 100, 10), strict=True)
        )
        problem = Problem(made, roomy.model_copy(update={"servers": servers}), "job")
        bound = lower_bound(problem)
        assert simulate(problem, np.array([0, 2])).step_seconds == pytest.approx(10.0)
        assert bound.seconds == pytest.approx(10.0)
        assert "pod's uplinks" in bound.reason


class TestSearch:
    def test_auto_stays_within_a_pod_where_the_uplink_is_narrow(self):
        branches = [f"b{k}" for k in range(6)]
        made = graph(
            {"A": 0.0, **dict.fromkeys(branches, 1.0), "Z": 0.0},
            [("A", branches, 200_000), *((b, ["Z"], 200_000) for b in branches)],
        )
        settings = SolveSettings(gap=0.0, moves=3000, time_limit_seconds=600, certify=0.0)
        used = {}
        for uplink in (0.05, 9.0):
            problem = Problem(made, podded(uplink), "job")
            placement = place(problem, "auto", settings)
            assert check(made, placement) == ()
            used[uplink] = {name.split("/")[0] for name in placement.devices_used}
            assert bool(uplinks_used(placement, {})) == (uplink == 9.0)
        assert used[0.05] in ({"s1", "s2"}, {"s3", "s4"})
        assert len(used[9.0]) > 2


class TestFiles:
    def test_a_cluster_without_pods_has_the_file_that_it_always_had(self):
        assert "pods" not in json.loads(cluster(4).model_dump_json())
        again = Cluster.model_validate_json(podded().model_dump_json())
        assert again == podded()

    @pytest.mark.parametrize(
        ("pods", "said"),
        [
            ([("p1", ["s1"]), ("p1", ["s2", "s3", "s4"])], "two of them are called 'p1'"),
            ([("p1", ["s1", "s2"]), ("p2", ["s2", "s3", "s4"])], "'s2' is in a pod already"),
            ([("p1", ["s1", "s2"]), ("p2", ["s3"])], "server 's4' is in none"),
            ([("p1", ["s1", "s2"]), ("p2", ["s3", "s4", "s5"])], "has no server 's5'"),
        ],
    )
    def test_pods_that_are_not_a_partition_of_the_servers_are_refused(self, pods, said):
        rows = [{"name": name, "servers": servers, "uplinks": []} for name, servers in pods]
        with pytest.raises(ValueError, match=said):
            Cluster.model_validate(cluster(4).model_dump() | {"pods": rows})


def test_a_placement_names_the_uplink_that_limits_it() -> None:
    made, device = sends((0, 2), (1, 3))
    placement = placement_of(Problem(made, podded(), "job"), device)
    took = "on rail a: 1.9 MiB take 100% of the step at its 8 Mbit/s"
    ways = "out of pod p1", "into pod p2"
    assert uplink_words(placement) == [f"uplink {way} {took}" for way in ways]
    said = uplink_words(placement, explain(made, placement).uplinks)
    waits = "; the step waits 100.0% of its time for messages over it"
    assert said == [f"uplink {way} {took}{waits}" for way in ways]
    assert any(
        "what pods send" in row for row in explanation_lines(placement, explain(made, placement))
    )
    assert any("uplink into pod p2" in line for line in placement_lines(placement))
    made, device = sends((0, 1), (2, 3))
    within = placement_of(Problem(made, podded(), "strict"), device)
    assert uplink_words(within) == ["nothing is sent over the uplinks of pods"]
    flat = placement_of(Problem(made, cluster(4), "strict"), device)
    assert uplink_words(flat) == []


def test_a_step_waits_for_the_uplinks_on_the_rails_of_its_message_alone() -> None:
    """A small message, which takes one rail, has B's second behind it; a large one, which takes
    both rails, has time."""
    made = graph(
        {"A": 0.0, "B": 1.0, "C": 0.0, "D": 0.0}, [("A", ["B"], 60_000), ("C", ["D"], 200_000)],
    )  # fmt: skip
    problem = Problem(made, podded(nics=(1.0, 1.0)), "job")
    placement = placement_of(problem, np.array([0, 2, 1, 3]))
    small, large = sorted(placement.messages, key=lambda message: message.bytes)
    assert sorted(small.rails.values()) == [1.0] and len(large.rails) == 2
    waits = {
        (one.rail, one.direction): one.critical_seconds for one in explain(made, placement).uplinks
    }
    assert len(waits) == 4
    for (rail, _), seconds in waits.items():
        assert seconds == pytest.approx(
            placement.step_seconds - 1.0 if rail in small.rails else 0.0
        )


def test_faster_uplinks_are_among_what_would_help() -> None:
    made, device = sends((0, 2), (1, 3))
    for sharing in ("job", "strict"):
        problem = Problem(made, podded(), sharing)
        timeline = simulate(problem, device, rates=starting_rates(problem, device))
        rates = starting_rates(problem, device) if problem.decides_rates else np.zeros((4, 4, 1))
        decision = PlacementArrays(device, timeline.order, rates)
        found = {one.what: one.step_seconds for one in changes(problem, decision, [])}
        assert found["every uplink twice as fast"] == pytest.approx(
            timeline.step_seconds / 2, rel=1e-6
        )
