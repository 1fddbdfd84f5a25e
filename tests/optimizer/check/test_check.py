"""check() finds each kind of lie in a placement file, and agrees with the simulator otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.check.check import check
from placewire.optimizer.check.recompute.claims import least_bound
from placewire.optimizer.check.recompute.facts import Facts
from placewire.optimizer.check.recompute.memory import recompute_memory
from placewire.optimizer.check.recompute.times import recompute_times
from placewire.optimizer.cluster import Cluster, Device
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.placement import PlacementError, placement_from_json
from placewire.optimizer.problem import InfeasibleError, Problem
from placewire.optimizer.rates.allocator import allocate, starting_rates
from placewire.optimizer.simulation.simulate import simulate
from tests.drawn_examples import examples
from tests.optimizer.cases import (
    BYTE_PER_MICROSECOND,
    cluster,
    clusters,
    devices_of,
    graph,
    graphs,
)
from tests.optimizer.check.checked_placements import PROBLEM, placement_of
from tests.optimizer.problems import SHARINGS, able_devices, problems

GOOD = placement_of(PROBLEM, [0, 1, 2, 2])


def test_a_good_placement_has_no_violation():
    assert check(PROBLEM.graph, GOOD) == ()


def changed_message(**update):
    first = max(range(len(GOOD.messages)), key=lambda k: GOOD.messages[k].bytes)
    rows = list(GOOD.messages)
    rows[first] = rows[first].model_copy(update=update)
    return {"messages": tuple(rows)}


@pytest.mark.parametrize(
    ("update", "what"),
    [
        ({"structure_hash": "0" * 64}, "this one is"),
        ({"profile_digest": "0" * 64}, "have changed"),
        ({"operators": {**GOOD.operators, "A": "s9/0"}}, "does not exist"),
        ({"operators": {k: v for k, v in GOOD.operators.items() if k != "A"}}, "placed nowhere"),
        ({"operators": {**GOOD.operators, "Z": "s1/0"}}, "no operator of the graph"),
        ({"operators": {**GOOD.operators, "C": "s1/0"}}, "missing in the order"),
        (
            {
                "operators": {**GOOD.operators, "C": "s1/0"},
                "order": {"s1/0": ("A", "C"), "s2/0": ("B",), "s3/0": ("D",)},
            },
            "co-location group",
        ),
        ({"order": {**GOOD.order, "s1/0": ("A", "A")}}, "listed twice"),
        ({"order": {**GOOD.order, "s3/0": ("D", "C")}}, "deadlock"),
        ({"messages": GOOD.messages[1:]}, "never sent"),
        ({"messages": (*GOOD.messages, GOOD.messages[0])}, "sent twice"),
        (changed_message(rails={"a": 0.5, "b": 0.4}), "sum to"),
        (changed_message(rails={"a": 0.5, "z": 0.5}), "both servers must have"),
        (changed_message(rails={"a": 0.5, "b": 0.5}), "in proportion to its pair's rates"),
        (changed_message(bytes=5), "the tensor has"),
        (changed_message(producer="nobody"), "is no operator"),
        (changed_message(output=3), "has no output 3"),
        (changed_message(source="s2/0"), "does not run on"),
        (changed_message(destination="s2/0"), "nobody there needs it"),
        ({"step_seconds": GOOD.step_seconds * (1 + 3e-6)}, "recomputed"),
        ({"bound_seconds": GOOD.step_seconds * 1.01}, "above the step"),
        ({"bound_seconds": GOOD.step_seconds, "gap": 0.0}, "can be proven without a search"),
        ({"bound_seconds": GOOD.bound_seconds / 2}, "longest path or the load"),
        ({"bound_seconds": 0.0, "gap": 1.0}, "longest path or the load"),
        ({"bound_seconds": -1e9}, "longest path or the load"),
        ({"bound_seconds": float("nan")}, "above the step"),
        ({"gap": -7.0}, "gap: says -7.0"),
        ({"gap": 0.0}, "gap: says 0.0"),
        ({"gap": float("nan")}, "gap: says nan"),
        ({"single_device_seconds": 1e-9}, "single_device_seconds: says 1e-09, recomputed 4.0"),
        ({"single_device_seconds": None}, "no device can hold everything, recomputed 4.0"),
        ({"single_device_seconds": float("nan")}, "single_device_seconds: says nan"),
        ({"rates_bits_per_second": ()}, "has no rate"),
    ],
)
def test_each_lie_is_found(update, what):
    violations = check(PROBLEM.graph, GOOD.model_copy(update=update))
    assert any(what in str(v) for v in violations), violations


def test_a_bound_of_a_version_that_knew_fewer_proofs_is_accepted():
    """B and C run on A's device, or wait for a transfer of 0.05 s: more than the path of 2 s."""
    problem = Problem(
        graph({"A": 1.0, "B": 1.0, "C": 1.0}, [("A", ["B", "C"], 400_000)]), cluster(2, (8e6,) * 8)
    )
    placement = placement_of(problem, [0, 0, 1])
    weaker = least_bound(Facts(problem.graph, placement))
    assert weaker < lower_bound(problem).seconds - 0.01
    update = {"bound_seconds": weaker, "gap": 1 - weaker / placement.step_seconds}
    assert check(problem.graph, placement.model_copy(update=update)) == ()


def test_rates_over_a_nic_are_found_in_both_directions():
    rows = tuple((s, t, r, rate * 1.5) for s, t, r, rate in GOOD.rates_bits_per_second)
    found = [
        str(v)
        for v in check(PROBLEM.graph, GOOD.model_copy(update={"rates_bits_per_second": rows}))
    ]
    assert any("transmits" in v or "is outside" in v for v in found)
    # Two senders of 5 into a receiver of 8: each transmits within its NIC.
    rows = (("s1", "s3", "a", 5e6), ("s2", "s3", "a", 5e6))
    found = [
        str(v)
        for v in check(PROBLEM.graph, GOOD.model_copy(update={"rates_bits_per_second": rows}))
    ]
    assert [v for v in found if "s3.a: receives" in v]


def test_a_device_over_its_memory_is_found():
    small = cluster(3, (8e6, 16e6), latency=0.001, memory=400_000)
    update = {"cluster": small, "single_device_seconds": None}
    found = check(PROBLEM.graph, GOOD.model_copy(update=update))
    # D's device holds A's 400,000 bytes, B's 1,000 and 7 of weights.
    assert [str(v) for v in found] == ["s3/0: needs 401007 bytes at its peak, has 400000"]


def test_a_device_that_the_graph_was_not_profiled_on_is_found():
    document = json.loads(GOOD.model_dump_json())
    document["cluster"]["servers"][0]["devices"].append({"type": "gpu", "memory_bytes": 1})
    found = check(PROBLEM.graph, placement_from_json(document))
    assert ["device type 'gpu'" in str(v) for v in found] == [True]


def test_the_best_single_device_is_the_fastest_that_has_the_memory():
    """Two types, four memories: against the engine's own answer, in each model."""
    made = build_graph(
        [
            OperatorRow("A", "op", {"fast": 1.0, "slow": 2.0}, weight_bytes=500),
            OperatorRow("B", "op", {"fast": 1.0, "slow": 2.0}, activation_bytes=300),
        ],
        [TensorRow("A", ("B",), 300)],
    )
    for memory, expected in ((900, 2.0), (600, 4.0), (799, 4.0)):
        fast = cluster(2, types=["fast", "slow"], memory=900)
        first = fast.servers[0]
        first = first.model_copy(update={"devices": (Device(type="fast", memory_bytes=memory),)})
        mixed = fast.model_copy(update={"servers": (first, fast.servers[1])})
        for model in ("contended", "thesis"):
            placement = placement_of(Problem(made, mixed, "strict", model), [1, 1])
            assert placement.single_device_seconds == expected
            assert check(made, placement) == ()


@pytest.mark.parametrize("server", ["s2", "s3"])
def test_a_placement_file_with_a_doubled_server_is_refused(server):
    document = json.loads(GOOD.model_dump_json())
    rows = document["cluster"]["servers"]
    rows.append(next(row for row in rows if row["name"] == server))
    with pytest.raises(PlacementError, match=f"two of them are called '{server}'"):
        placement_from_json(document)


@pytest.mark.parametrize("full", [0, 1])
def test_an_even_split_counts_the_nics_that_the_job_can_use(full):
    # A neighbour takes all of one NIC, or of two: what is left is split without these.
    document = cluster(3).model_dump()
    for server in document["servers"][: full + 1]:
        server["nics"][0]["background_bits_per_second"] = BYTE_PER_MICROSECOND
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 1000)])
    problem = Problem(made, Cluster.model_validate(document), "even", floor=0.0)
    placement = placement_of(problem, [1, 2] if full == 0 else [2, 2])
    assert check(made, placement) == ()
    assert len(placement.rates_bits_per_second) == (2 if full == 0 else 0)
    if full == 0:
        wrong = [(s, t, r, rate / 2) for s, t, r, rate in placement.rates_bits_per_second]
        changed = placement.model_copy(update={"rates_bits_per_second": tuple(wrong)})
        assert "an even split gives 8000000" in str(check(made, changed)[0])


WAYS = [("contended", sharing) for sharing in SHARINGS]
WAYS += [("thesis", sharing) for sharing in SHARINGS] + [("msr", "unshaped")]


@pytest.mark.parametrize(("model", "sharing"), WAYS)
# The checker stands for every result, so that `make test` draws all examples, too.
@settings(max_examples=12, deadline=None, database=None)
@given(st.data())
def test_check_agrees_with_the_simulator(model, sharing, data):
    """Step time, every finish, every arrival and every peak, by two programs that share nothing."""
    drawn = data.draw(problems(largest=12, models=(model,), extremes=True))
    problem = replace(drawn, sharing=sharing)
    device = data.draw(able_devices(problem))
    count = problem.graph.operator_count
    priority = np.array(data.draw(st.permutations(range(count))), dtype=float)
    scale = data.draw(st.sampled_from([1.0, 0.4]))  # leaves something to lend under guarantee
    try:
        placement = placement_of(problem, device, priority, scale=scale)
    except InfeasibleError:  # a server that carries nothing was to send
        reject()
    assert check(problem.graph, placement) == ()
    rates = placement.rates if problem.decides_rates else None
    timeline = simulate(problem, device, priority, None, rates)
    facts = Facts(problem.graph, placement)
    times = recompute_times(facts)
    assert times is not None
    assert [times.finish[i] for i in range(count)] == pytest.approx(
        timeline.finish.tolist(), rel=1e-6, abs=1e-9
    )
    arrivals = {
        (m.tensor, problem.cluster.device_names[m.destination]): m.finish_seconds
        for m in timeline.messages
    }
    assert times.arrival == pytest.approx(arrivals, rel=1e-6, abs=1e-9)
    peaks = recompute_memory(facts, times)
    named = zip(problem.cluster.device_names, timeline.peak_memory_bytes.tolist(), strict=True)
    assert peaks == dict(named)


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_bound_and_rates_hold_for_every_placement(data):
    sharing = data.draw(st.sampled_from(["strict", "even", "unshaped"]))
    model = data.draw(st.sampled_from(["contended", "contended", "thesis"]))
    problem = Problem(data.draw(graphs()), data.draw(clusters()), sharing, model)
    device = data.draw(devices_of(problem))
    rates = None
    if sharing == "strict":
        first = simulate(problem, device, None, None, starting_rates(problem, device))
        rates = allocate(problem, device, first.order)
        nics = problem.cluster.nic_rates
        assert (rates.sum(axis=1) <= nics * (1 + 1e-9)).all()
        if model == "contended":
            assert (rates.sum(axis=0) <= nics * (1 + 1e-9)).all()
        again = simulate(problem, device, None, first.order, rates)
        assert again.step_seconds <= first.step_seconds * (1 + 1e-9)
    timeline = simulate(problem, device, None, None, rates)
    assert lower_bound(problem).seconds <= timeline.step_seconds
