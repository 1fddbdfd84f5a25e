"""Lower bounds: each kind where it is the sharp one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.bounds import lower_bound, quick, relaxation
from placewire.optimizer.bounds.memory_limits import refuse_impossible
from placewire.optimizer.bounds.relaxation import Relaxation, relax
from placewire.optimizer.cluster import Cluster, Link
from placewire.optimizer.engines.bundling import unbundled
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import InfeasibleError, Problem
from placewire.optimizer.simulation.bundles import Bundle, PlacedStep, with_bundles
from placewire.optimizer.simulation.simulate import simulate
from tests.drawn_examples import examples
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, full_rates, graph, layered
from tests.optimizer.check.brute_force import (
    contention_free_optimum,
    simulated_optimum,
    tiny_problems,
)


def test_critical_path():
    made = graph({"A": 1.0, "B": 2.0, "C": 4.0}, [("A", ["B"], 0), ("B", ["C"], 0)])
    bound = lower_bound(Problem(made, cluster(4)))
    assert bound.seconds == pytest.approx(7.0)
    assert "critical path" in bound.reason


def test_a_bound_is_kept_with_the_graph_for_each_cluster_and_sharing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Problem] = []

    def noted(problem: Problem) -> Relaxation:
        asked.append(problem)
        return relax(problem)

    monkeypatch.setattr(quick, "relax", noted)
    made = graph({"A": 1.0, "B": 2.0}, [])
    for devices, seconds in ((2, 2.0), (2, 2.0), (1, 3.0), (2, 2.0)):
        assert lower_bound(Problem(made, cluster(devices))).seconds == pytest.approx(seconds)
    lower_bound(Problem(made, cluster(2), sharing="even"))
    assert [len(one.cluster.devices) for one in asked] == [2, 1, 2]
    other = graph({"A": 1.0, "B": 5.0}, [])
    assert lower_bound(Problem(other, cluster(2))).seconds == pytest.approx(5.0)


@pytest.mark.parametrize("seed", range(5))
def test_heads_and_tails_are_the_same_on_two_cores(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    problem = Problem(layered(6, 8, seed=seed), cluster(3))
    alone = relax(problem).heads_and_tails
    monkeypatch.setattr(relaxation, "_ON_TWO_CORES_FROM", 0)
    for one, other in zip(alone, relax(problem).heads_and_tails, strict=True):
        assert (one == other).all()


def test_load_over_devices():
    made = graph({f"o{i}": 1.0 for i in range(9)}, [])
    assert lower_bound(Problem(made, cluster(3))).seconds == pytest.approx(3.0)


def test_load_over_unlike_devices():
    # One device runs everything twice as fast: 9 operators of 1 s (2 s on the slow one) take at
    # least 9 / (1 + 1/2) = 6 s; total of the fastest times over two devices says only 4.5 s.
    rows = [OperatorRow(f"o{i}", "op", {"fast": 1.0, "slow": 2.0}) for i in range(9)]
    problem = Problem(build_graph(rows, []), cluster(2, types=["fast", "slow"]))
    assert 5.9 < lower_bound(problem).seconds <= 6.0


def test_load_between_a_head_and_a_tail():
    # 1 s, then 8 parallel operators of 1 s on 2 devices, then 1 s: 6 s, neither path nor load.
    middle = [f"m{i}" for i in range(8)]
    made = graph(
        {"A": 1.0, **dict.fromkeys(middle, 1.0), "Z": 1.0},
        [("A", middle, 0), *((m, ["Z"], 0) for m in middle)],
    )
    assert lower_bound(Problem(made, cluster(2))).seconds == pytest.approx(6.0)


def test_a_colocation_group_runs_on_one_device():
    made = graph(
        dict.fromkeys("ABCD", 1.0) | {"Z": 1.0},
        [(x, ["Z"], 0) for x in "ABCD"],
        colocation=dict.fromkeys("ABCD", "k"),
    )
    assert lower_bound(Problem(made, cluster(5))).seconds == pytest.approx(5.0)


def test_one_device():
    made = graph(dict.fromkeys("ABC", 1.0), [])
    assert lower_bound(Problem(made, cluster(1))).seconds == pytest.approx(3.0)


def test_an_operator_that_runs_nowhere():
    rows = [OperatorRow("A", "op", {"gpu": 1.0}), OperatorRow("B", "op", {"cpu": 1.0})]
    with pytest.raises(InfeasibleError, match="'A' has no time"):
        lower_bound(Problem(build_graph(rows, []), cluster()))


def test_memory_that_no_placement_has():
    made = graph(
        {"W": 0.0, "G": 1.0, "U": 1.0},
        [("G", ["U"], 64)],
        weight_bytes={"W": 192},
        activation_bytes={"G": 64},
        colocation={"W": "k", "U": "k"},
    )
    # The update needs the weights, 192, and its gradient, 64, at the same time.
    refuse_impossible(Problem(made, cluster(memory=256)))
    with pytest.raises(InfeasibleError, match="'U' with its co-location group"):
        refuse_impossible(Problem(made, cluster(memory=255)))
    with pytest.raises(InfeasibleError, match="devices together"):
        refuse_impossible(Problem(made, cluster(memory=95)))


def test_memory_of_what_arrives_from_an_operator_that_holds_its_output():
    # Beside A the addition finds A's own 192, apart from it the tensor of 192 arrives.
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 192)], weight_bytes={"A": 192, "B": 64})
    refuse_impossible(Problem(made, cluster(memory=256)))
    with pytest.raises(InfeasibleError, match=r"'B' \(.* resident\) needs"):
        refuse_impossible(Problem(made, cluster(memory=255)))


def test_bounds_scale_to_many_operators():
    generator = np.random.default_rng(0)
    rows = [OperatorRow(f"o{i}", "op", {"cpu": float(generator.random())}) for i in range(3000)]
    tensors = [TensorRow(f"o{i}", (f"o{i + 1}",), 8) for i in range(0, 2999, 3)]
    problem = Problem(build_graph(rows, tensors), cluster(4))
    total = float(problem.seconds[:, 0].sum())
    assert lower_bound(problem).seconds == pytest.approx(total / 4, rel=1e-6)


def test_a_join_waits_for_a_transfer_or_for_its_device():
    # Z reads 4 s worth of bytes from both A and B (3 s each): either one of them is sent, 3 + 4, or
    # all three share a device, 3 + 3. Without transfers the path is 3 + 1.
    made = graph({"A": 3.0, "B": 3.0, "Z": 1.0}, [("A", ["Z"], 4 * 10**6), ("B", ["Z"], 4 * 10**6)])
    bound = lower_bound(Problem(made, cluster(2)))
    assert bound.seconds == pytest.approx(7.0)
    assert "transfers" in bound.reason
    # At ten times the rate one is sent after all: 3 + 0.4.
    quick = Problem(made, cluster(2, rates=[10 * BYTE_PER_MICROSECOND]))
    assert lower_bound(quick).seconds == pytest.approx(4.4)


def test_ancestors_count_beyond_direct_producers():
    # A and B are tiny but far from Z; what they read takes 3 s each and as long to be sent.
    made = graph(
        {"P": 3.0, "Q": 3.0, "A": 0.0, "B": 0.0, "Z": 1.0},
        [(x, [y], 4 * 10**6) for x, y in ("PA", "QB", "AZ", "BZ")],
    )
    assert lower_bound(Problem(made, cluster(2))).seconds == pytest.approx(7.0)


def test_a_message_occupies_its_sender_before_it_leaves():
    # A and Z fit on no device together: 1 s, 0.25 s for the message, 4 s of bytes, 1 s.
    made = graph({"A": 1.0, "Z": 1.0}, [("A", ["Z"], 4 * 10**6)], weight_bytes={"A": 600, "Z": 600})
    apart = cluster(2, memory=1_000).model_copy(update={"message_seconds": 0.25})
    problem = Problem(made, apart, "job")
    assert lower_bound(problem).seconds == pytest.approx(1.0 + 0.25 + 4.0 + 1.0, rel=1e-3)
    # Its receiver is occupied, too, but may run other readers first.
    step = simulate(problem, np.array([0, 1])).step_seconds
    assert step == pytest.approx(1.0 + 0.25 + 4.0 + 0.25 + 1.0)


def test_a_path_between_operators_that_are_apart_has_a_transfer():
    # One device would take 12 s for A, B, Y and Z. M and N, which take no time, may be with any, so
    # that no edge has to be a transfer; but what Y and Z wait for comes from another device.
    made = graph(
        {"A": 3.0, "B": 3.0, "M": 0.0, "N": 0.0, "Y": 3.0, "Z": 3.0},
        [("A", ["M", "N"], 2 * 10**6), ("M", ["Y"], 2 * 10**6), ("N", ["Z"], 2 * 10**6)],
        colocation={"A": "k", "B": "k", "Y": "z", "Z": "z"},
    )
    problem = Problem(made, cluster(2), "job")
    assert simulated_optimum(problem) == pytest.approx(3.0 + 2.0 + 3.0 + 3.0)
    assert lower_bound(problem).seconds == pytest.approx(3.0 + 2.0 + 3.0 + 3.0, rel=1e-3)


def test_a_small_tensor_takes_all_rails_in_a_bundle():
    # 40,000 bytes alone take one of three rails; two of them together take all three.
    made = graph(
        {"A": 1e-6, "B": 1e-6, "Z": 1e-6},
        [("A", ["Z"], 40_000), ("B", ["Z"], 40_000)],
        weight_bytes={"A": 300, "B": 300, "Z": 800},
    )
    rails = cluster(2, [BYTE_PER_MICROSECOND] * 3, memory=1_000)
    problem = Problem(made, rails.model_copy(update={"message_seconds": 1e-6}), "job")
    device, priority = np.array([0, 0, 1]), np.zeros(3)
    alone = unbundled(problem, Solution(device, priority, None)).timeline
    plain = PlacedStep(made, device, alone.order)
    step = with_bundles(plain, [Bundle(0, (1,), (0, 1))])
    joined = simulate(replace(problem, graph=step.graph), step.device, None, step.order)
    assert joined.step_seconds < alone.step_seconds - 0.01
    assert lower_bound(problem).seconds <= joined.step_seconds


def test_links_between_devices_may_be_faster_than_nics():
    made = graph({"A": 3.0, "B": 3.0, "Z": 1.0}, [("A", ["Z"], 4 * 10**6), ("B", ["Z"], 4 * 10**6)])
    joined = cluster(2).model_copy(
        update={
            "links": (
                Link(
                    source="s2/0",
                    destination="s1/0",
                    setup_latency_seconds=0.1,
                    rate_bits_per_second=10 * BYTE_PER_MICROSECOND,
                ),
            )
        }
    )
    assert lower_bound(Problem(made, joined)).seconds == pytest.approx(4.5)


@settings(max_examples=examples(40), deadline=None)
@given(tiny_problems())
def test_no_bound_exceeds_the_contention_free_optimum(problem):
    assert lower_bound(problem).seconds <= contention_free_optimum(problem) * (1 + 1e-9)


@settings(max_examples=examples(25), deadline=None)
@given(tiny_problems(largest=4))
def test_no_bound_exceeds_the_simulated_optimum(problem):
    # Every pair at its largest rate at once is more than strict sharing admits.
    rates = full_rates(problem) if problem.decides_rates else None
    assert lower_bound(problem).seconds <= simulated_optimum(problem, rates) * (1 + 1e-9)


@pytest.mark.parametrize("rate", [1e6, 1e12])
def test_a_link_past_host_memory_bounds_as_the_simulator_has_it(rate):
    # Under `msr` two accelerators pay host memory twice, 20 s; their link takes 1 ms, or 1000 s.
    rows = [OperatorRow(name, "op", {"accelerator": 1.0}) for name in "ABCD"]
    tensors = [TensorRow(x, (*y,), 125_000_000) for x, y in (("A", "BC"), ("B", "D"), ("C", "D"))]
    ends = ("s1/0", "s1/1")
    links = tuple(
        Link(source=a, destination=b, setup_latency_seconds=0.0, rate_bits_per_second=rate)
        for a, b in (ends, ends[::-1])
    )
    joined = cluster(1, [], devices=2, types=["accelerator"], intra=1e8)
    problem = Problem(
        build_graph(rows, tensors), joined.model_copy(update={"links": links}), "strict", "msr"
    )
    optimum = simulated_optimum(problem)
    assert optimum == pytest.approx(3.001 if rate == 1e12 else 4.0)
    assert lower_bound(problem).seconds == pytest.approx(optimum, rel=1e-3)


@pytest.mark.parametrize("sharing", ["strict", "job", "even", "unshaped"])
def test_memory_forces_volume_over_the_network(sharing):
    # A's outputs are read by B's group, and the two hold too much for one server: 10 transfers of
    # 1 s each leave A's server, one after the other at best, after A and before the last reader.
    readers = [f"b{k}" for k in range(10)]
    made = graph(
        {"A": 1.0, **dict.fromkeys(readers, 0.1)},
        [("A", [b], 10**6) for b in readers],
        weight_bytes={"A": 600, "b0": 600},
        colocation=dict.fromkeys(readers, "k"),
    )
    free, tight = (Problem(made, cluster(2, memory=m), sharing) for m in (1200, 1199))
    assert lower_bound(free).seconds == pytest.approx(2.0)
    assert lower_bound(tight).seconds == pytest.approx(1.0 + 10.0 + 0.1)
    assert "volume" in lower_bound(tight).reason
    thesis = Problem(made, tight.cluster, sharing, "thesis")
    assert lower_bound(thesis).seconds == pytest.approx(1.0 + 1.0 + 10 * 0.1, rel=1e-3)


def test_an_even_split_counts_only_servers_that_the_job_can_reach():
    # A neighbour takes all of s1's NIC, so that s2 and s3 have each other's to themselves.
    weights = {"A": 6 * 10**6, "B": 6 * 10**6}
    made = graph({"A": 1.0, "B": 0.5}, [("A", ["B"], 10**6)], weight_bytes=weights)
    document = cluster(3, memory=10**7).model_dump()
    document["servers"][0]["nics"][0]["background_bits_per_second"] = 5 * BYTE_PER_MICROSECOND
    problem = Problem(made, Cluster.model_validate(document), "even", floor=0.0)
    assert simulated_optimum(problem) == pytest.approx(1.0 + 1.0 + 0.5)
    assert lower_bound(problem).seconds <= 2.5 * (1 + 1e-9)


def test_memory_forces_volume_without_a_pair_that_conflicts():
    # Eight operators of 300 bytes, each pair joined by a tensor of 3 s; a server has room for 3.
    # Of k operators on a server 3 k (8 - k) s leave or enter, half of it at best at the same time:
    # 10.5 s for one, after the first and before the last of 0.01 s. A single path takes but 3 s.
    names = "ABCDEFGH"
    made = graph(
        dict.fromkeys(names, 0.01),
        [(x, [y], 3 * 10**6) for x, y in itertools.combinations(names, 2)],
        weight_bytes=dict.fromkeys(names, 300),
    )
    tight = Problem(made, cluster(3, memory=900), "unshaped")
    assert 5.0 < lower_bound(tight).seconds <= 10.52
    assert "volume" in lower_bound(tight).reason
    assert lower_bound(Problem(made, cluster(3, memory=2400))).seconds < 0.1


@settings(max_examples=examples(25), deadline=None)
@given(tiny_problems(largest=4), st.sampled_from(["unshaped", "even"]))
def test_no_bound_exceeds_the_optimum_within_tight_memories(drawn, sharing):
    servers = tuple(
        server.model_copy(
            update={
                "devices": tuple(
                    d.model_copy(update={"memory_bytes": 101_000}) for d in server.devices
                )
            }
        )
        for server in drawn.cluster.servers
    )
    tight = drawn.cluster.model_copy(update={"servers": servers})
    problem = Problem(drawn.graph, tight, sharing, "contended")
    assert lower_bound(problem).seconds <= simulated_optimum(problem) * (1 + 1e-9)


def test_devices_wait_for_what_one_of_them_has():
    # All that is made of W takes 12 s. W is sent in 2 s, so that three of four devices begin at 2 s
    # or later: 2 + 2 + 2 + 12 s over four of them. No path and no load says more than 3 s.
    readers = [f"r{k}" for k in range(12)]
    made = graph({"W": 0.0, **dict.fromkeys(readers, 1.0)}, [("W", readers, 2_000_000)])
    bound = lower_bound(Problem(made, cluster(4), "job"))
    assert bound.seconds == pytest.approx((12 + 3 * 2) / 4)
    assert "wait" in bound.reason


def test_devices_that_wait_too_long_are_not_counted():
    # Nothing is gained by a second device, to which W takes 20 s.
    readers = [f"r{k}" for k in range(12)]
    made = graph({"W": 0.0, **dict.fromkeys(readers, 1.0)}, [("W", readers, 20_000_000)])
    assert lower_bound(Problem(made, cluster(4), "job")).seconds == pytest.approx(12.0)


def test_gradients_make_devices_end_early():
    # G, on one device, reads what all others make, 2 s each, and takes 1 s.
    made = graph(
        {**{f"m{k}": 1.0 for k in range(12)}, "G": 1.0},
        [(f"m{k}", ["G"], 2_000_000) for k in range(12)],
    )
    bound = lower_bound(Problem(made, cluster(4), "job"))
    assert bound.seconds == pytest.approx((12 + 1 + 3 * 3) / 4)
    assert "wait" in bound.reason
