"""check() finds each kind of lie in a placement file, and agrees with the simulator otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cases import cluster, clusters, devices_of, graph, graphs
from optimizer.bounds import lower_bound, strong_bound
from optimizer.check import check
from optimizer.cluster import Device, Link
from optimizer.engines.assemble import assemble
from optimizer.engines.single import best_single
from optimizer.engines.solution import Solution
from optimizer.graph import OperatorRow, TensorRow, build_graph
from optimizer.placement import Placement, PlacementError, placement_from_json
from optimizer.problem import Problem
from optimizer.rates import allocate, starting_rates
from optimizer.recompute.facts import Facts
from optimizer.recompute.memory import recompute_memory
from optimizer.recompute.times import recompute_times
from optimizer.sharing import decides_rates
from optimizer.simulate import simulate
from problems import SHARINGS, able_devices, problems


def placement_of(problem, device, priority=None, *, scale=1.0) -> Placement:
    device = np.array(device, dtype=np.int64)
    n = problem.graph.operator_count
    priority = -np.arange(n, dtype=float) if priority is None else priority
    rates = starting_rates(problem, device) * scale if decides_rates(problem) else None
    alone = best_single(problem)
    return assemble(
        problem,
        Solution(device, priority, rates),
        lower_bound(problem),
        single_device_seconds=None if alone is None else alone[1],
        engine="test",
        reduction="none",
        seed=0,
        wall_seconds={},
    )


PROBLEM = Problem(
    graph(
        {"A": 1.0, "B": 1.0, "C": 1.0, "D": 1.0},
        [("A", ["C", "D"], 400_000), ("B", ["D"], 1_000), ("C", ["D"], 0)],
        activation_bytes={"A": 400_000, "B": 1_000},
        weight_bytes={"C": 7},
        colocation={"C": "k", "D": "k"},
    ),
    cluster(3, (8e6, 16e6), latency=0.001),
)
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
        (changed_message(rails={"a": 0.5, "b": 0.5}), "recomputed"),
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


WAYS = [("contended", sharing) for sharing in SHARINGS]
WAYS += [("thesis", sharing) for sharing in SHARINGS] + [("msr", "unshaped")]


@pytest.mark.parametrize(("model", "sharing"), WAYS)
@settings(max_examples=12, deadline=None, database=None)
@given(st.data())
def test_check_agrees_with_the_simulator(model, sharing, data):
    """Step time, every finish, every arrival and every peak, by two programs that share nothing."""
    problem = replace(data.draw(problems(largest=12, models=(model,))), sharing=sharing)
    device = data.draw(able_devices(problem))
    count = problem.graph.operator_count
    priority = np.array(data.draw(st.permutations(range(count))), dtype=float)
    scale = data.draw(st.sampled_from([1.0, 0.4]))  # leaves something to lend under guarantee
    placement = placement_of(problem, device, priority, scale=scale)
    assert check(problem.graph, placement) == ()
    rates = placement.rates if decides_rates(problem) else None
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


def of_sharing(sharing, backend="gloo", nics=(8e6, 16e6)):
    """The good placement's graph and devices, with a neighbour of 4 Mbit/s on every NIC."""
    where = cluster(3, nics, latency=0.001)
    neighbour = {"background_bits_per_second": 4e6}
    busy = [
        server.model_copy(
            update={"nics": tuple(nic.model_copy(update=neighbour) for nic in server.nics)}
        )
        for server in where.servers
    ]
    where = where.model_copy(update={"servers": tuple(busy)})
    problem = Problem(PROBLEM.graph, where, sharing, "contended", backend, 0.5)
    placement = placement_of(problem, [0, 1, 2, 2])
    assert check(problem.graph, placement) == ()
    return placement


def complaints(placement):
    return [str(violation) for violation in check(PROBLEM.graph, placement)]


def with_messages(placement, **update_of_largest):
    rows = sorted(placement.messages, key=lambda message: -message.bytes)
    rows[0] = rows[0].model_copy(update=update_of_largest)
    return placement.model_copy(update={"messages": tuple(rows)})


@pytest.mark.parametrize("sharing", ["strict", "guarantee"])
def test_rates_are_held_against_what_the_neighbour_leaves(sharing):
    placement = of_sharing(sharing)
    # 8 Mbit/s less the neighbour's 4; on the other rail 16 less 4.
    rows = {(s, t, r): rate for s, t, r, rate in placement.rates_bits_per_second}
    assert sum(rate for (s, _, r), rate in rows.items() if (s, r) == ("s1", "a")) <= 4e6 * 1.000001
    rows["s1", "s3", "a"], rows["s2", "s3", "a"] = 2.2e6, 2e6
    update = {"rates_bits_per_second": tuple((*key, rate) for key, rate in rows.items())}
    assert [c for c in complaints(placement.model_copy(update=update)) if "s3.a: receives" in c]
    rows["s1", "s3", "a"] = 4.1e6
    update = {"rates_bits_per_second": tuple((*key, rate) for key, rate in rows.items())}
    said = complaints(placement.model_copy(update=update))
    assert "rates_bits_per_second.s1.s3.a: 4100000 bit/s is outside 0..4000000" in said
    # Less is allowed, and then the step is another.
    rows = {key: rate / 2 for key, rate in rows.items()} | {("s2", "s3", "a"): 1e6}
    update = {"rates_bits_per_second": tuple((*key, rate) for key, rate in rows.items())}
    assert any("recomputed" in c for c in complaints(placement.model_copy(update=update)))


@pytest.mark.parametrize("sharing", ["job", "unshaped"])
def test_shared_nics_have_no_rates_per_pair(sharing):
    placement = of_sharing(sharing)
    update = {"rates_bits_per_second": (("s1", "s3", "a", 1.0),)}
    assert complaints(placement.model_copy(update=update)) == [
        f"rates_bits_per_second: {sharing} sharing has no rates per pair"
    ]


def test_even_rates_are_an_even_split():
    placement = of_sharing("even")
    rows = [list(row) for row in placement.rates_bits_per_second]
    rows[0][3] *= 0.9
    update = {"rates_bits_per_second": tuple(tuple(row) for row in rows)}
    source, target, rail, _ = rows[0]
    assert complaints(placement.model_copy(update=update)) == [
        f"rates_bits_per_second.{source}.{target}.{rail}: 1800000 bit/s, an even split gives "
        "2000000"
    ]
    said = complaints(placement.model_copy(update={"rates_bits_per_second": ()}))
    assert said == ["rates_bits_per_second: even sharing needs its rates"]


def test_ranks_are_a_permutation_where_they_decide():
    job = of_sharing("job")
    for rank in (1, -1, len(job.messages)):
        rows = [message.model_copy(update={"rank": rank}) for message in job.messages]
        said = complaints(job.model_copy(update={"messages": tuple(rows)}))
        assert said
        assert all(c.startswith("messages.") and "given twice, or is not" in c for c in said)
    strict = of_sharing("strict")
    rows = [message.model_copy(update={"rank": 7}) for message in strict.messages]
    assert complaints(strict.model_copy(update={"messages": tuple(rows)})) == []


def test_another_urgency_is_another_step():
    """Two sends of one server: the later read one first, and everything ends later."""
    made = graph(
        {"A": 0.0, "B": 0.0, "C": 1.0, "D": 0.0},
        [("A", ["C"], 1_000_000), ("B", ["D"], 1_000_000)],
    )
    problem = Problem(made, cluster(3), "job")
    placement = placement_of(problem, [0, 0, 1, 2])
    assert placement.step_seconds == pytest.approx(2.0)
    assert check(made, placement) == ()
    swapped = [m.model_copy(update={"rank": 1 - m.rank}) for m in placement.messages]
    (found,) = check(made, placement.model_copy(update={"messages": tuple(swapped)}))
    assert found.where == "step_seconds"
    assert float(str(found).split()[-1]) == pytest.approx(3.0)


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "even", "unshaped"])
def test_nccl_cuts_equally_over_all_rails_of_a_pair(sharing):
    placement = of_sharing(sharing, "nccl", (8e6, 10e6))
    assert max(placement.messages, key=lambda m: m.bytes).rails == {"a": 0.5, "b": 0.5}
    for rails in ({"a": 0.25, "b": 0.75}, {"a": 1.0}, {"b": 1.0}):
        (said,) = complaints(with_messages(placement, rails=rails))
        assert said.startswith("message of 'A' to s3/0: shares")
        assert said.endswith("nccl cuts it equally over 2 of its rails")
    small = [m.model_copy(update={"rails": {"a": 0.5, "b": 0.5}}) for m in placement.messages]
    (said,) = complaints(placement.model_copy(update={"messages": tuple(small)}))
    assert said.startswith("message of 'B'")
    assert said.endswith("over 1 of its rails")


def test_a_message_on_a_link_names_no_rails():
    link = Link(source="s1/0", destination="s3/0", setup_latency_seconds=0.0,
                rate_bits_per_second=1e6)  # fmt: skip
    where = cluster(3, (8e6, 16e6)).model_copy(update={"links": (link,)})
    for model in ("contended", "thesis"):
        placement = placement_of(Problem(PROBLEM.graph, where, "strict", model), [0, 1, 2, 2])
        assert complaints(placement) == []
        (said,) = complaints(with_messages(placement, rails={"a": 1.0}))
        assert said == "message of 'A' to s3/0: has a link of its own and names rails"


def test_what_is_kept_for_the_job_is_a_part_of_each_nic():
    placement = of_sharing("job")
    (said,) = complaints(placement.model_copy(update={"entitled": 1.5}))
    assert said.startswith("entitled: 1.5 is no part of a NIC")
    # With nothing kept, the neighbour of 4 leaves 4 of 8 and 12 of 16: as declared here.
    assert complaints(placement.model_copy(update={"entitled": 0.0})) == []
    more = complaints(placement.model_copy(update={"entitled": 1.0}))
    assert any(c.startswith("step_seconds") for c in more)


def test_msr_is_of_one_server():
    placement = of_sharing("strict").model_copy(update={"model": "msr"})
    assert complaints(placement) == [
        "cluster.servers: model msr knows one server's devices and its memory"
    ]


def test_a_bound_above_the_quick_one_names_its_proof_which_can_be_run_again():
    """Five operators of 2 on two devices: 6, where the quick bounds see 10 / 2."""
    made = graph(dict.fromkeys("ABCDE", 2.0), [])
    problem = Problem(made, cluster(2))
    placement = placement_of(problem, [0, 0, 0, 1, 1])
    assert placement.step_seconds == pytest.approx(6.0)
    proven = strong_bound(problem, placement.step_seconds, 5.0)
    assert lower_bound(problem).seconds == pytest.approx(5.0)
    assert proven.seconds == pytest.approx(6.0, rel=1e-4)

    def claimed(step, seconds, reason):
        update = {"bound_seconds": seconds, "bound_reason": reason, "gap": 1 - seconds / step}
        return update | {"step_seconds": step}

    good = placement.model_copy(update=claimed(6.0, proven.seconds, proven.reason))
    assert check(made, good) == check(made, good, prove_seconds=5.0) == ()
    unnamed = placement.model_copy(update=claimed(6.0, proven.seconds, "I think so"))
    (found,) = check(made, unnamed)
    assert found.where == "bound_seconds"
    assert "which its bound_reason does not name" in found.what
    # A step of 8 with a bound of 7 cannot be refuted by looking: it takes the search.
    slow = placement_of(problem, [0, 0, 0, 0, 1])
    forged = slow.model_copy(update=claimed(8.0, 7.0, proven.reason))
    assert check(made, forged) == ()
    (found,) = check(made, forged, prove_seconds=5.0)
    assert found.where == "bound_seconds"
    assert found.what.startswith(("says 7.0, only 5.99", "says 7.0, only 6.0"))
    assert "was proven in 5 s" in found.what


def _other_device(placement, draw):
    name = draw(st.sampled_from(sorted(placement.operators)))
    devices = [d for d in placement.cluster.device_names if d != placement.operators[name]]
    moved = {**placement.operators, name: draw(st.sampled_from(devices))}
    return {"operators": moved}, "oper ord"


def _without_a_message(placement, draw):
    assume(placement.messages)
    k = draw(st.integers(0, len(placement.messages) - 1))
    left = placement.messages[:k] + placement.messages[k + 1 :]
    return {"messages": left}, f"{placement.messages[k].destination} messages."


def _another_message(update):
    def change(placement, draw):
        assume(placement.messages)
        rows = list(placement.messages)
        k = draw(st.integers(0, len(rows) - 1))
        rows[k] = rows[k].model_copy(update=update(rows[k]))
        return {"messages": tuple(rows)}, "message"

    return change


def _shorter_order(placement, draw):
    device = draw(st.sampled_from(placement.devices_used))
    return {"order": {**placement.order, device: placement.order[device][:-1]}}, "order."


def _larger_rate(placement, draw):
    assume(placement.rates_bits_per_second)
    rows = list(placement.rates_bits_per_second)
    k = draw(st.integers(0, len(rows) - 1))
    rows[k] = (*rows[k][:3], 1e9)
    return {"rates_bits_per_second": tuple(rows)}, "rates_bits_per_second."


CHANGES = {
    "step": lambda p, draw: ({"step_seconds": p.step_seconds * 1.001 + 1e-6}, "step_seconds"),
    "bound": lambda p, draw: ({"bound_seconds": p.step_seconds * 1.001 + 1e-6}, "bound_seconds"),
    "gap": lambda p, draw: ({"gap": p.gap + 1e-4}, "gap"),
    "single": lambda p, draw: ({"single_device_seconds": None}, "single_device_seconds"),
    "device": _other_device,
    "order": _shorter_order,
    "message removed": _without_a_message,
    "bytes": _another_message(lambda m: {"bytes": m.bytes + 1}),
    "share": _another_message(lambda m: {"rails": {**m.rails, "a": m.rails.get("a", 0.0) + 0.01}}),
    "rank": _another_message(lambda m: {"rank": m.rank + 1}),
    "rate": _larger_rate,
}


@pytest.mark.parametrize("name", CHANGES)
@settings(
    max_examples=8,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(st.data())
def test_one_thing_changed_is_named(name, data):
    """In a correct placement of any problem, of the sharings in which the thing is a decision."""
    problem = data.draw(problems(models=("contended", "thesis")))
    if name == "rank":
        problem = replace(problem, sharing="job")
    if name == "rate":
        sharing = data.draw(st.sampled_from(["strict", "guarantee", "even"]))
        problem = replace(problem, sharing=sharing)
    placement = placement_of(problem, data.draw(able_devices(problem)))
    assert check(problem.graph, placement) == ()
    update, places = CHANGES[name](placement, data.draw)
    found = check(problem.graph, placement.model_copy(update=update))
    assert any(v.where.startswith(place) for v in found for place in places.split()), found


@settings(max_examples=40, deadline=None)
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
