"""check() against one thing changed: by sharing, backend and model, and in any placement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placewire.optimizer.bounds import lower_bound, strong_bound
from placewire.optimizer.check.check import check
from placewire.optimizer.cluster import Link
from placewire.optimizer.problem import Problem
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, graph
from tests.optimizer.check.checked_placements import PROBLEM, placement_of
from tests.optimizer.problems import able_devices, problems


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


def with_small_messages(placement, rails):
    rows = [
        m if m.bytes > 64 * 1024 else m.model_copy(update={"rails": rails})
        for m in placement.messages
    ]
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
    # Less is allowed, and then the step is another where nothing is lent.
    half = tuple((*row[:3], row[3] / 2) for row in placement.rates_bits_per_second)
    said = complaints(placement.model_copy(update={"rates_bits_per_second": half}))
    assert [c.split(":")[0] for c in said] == (["step_seconds"] if sharing == "strict" else [])


def test_a_guarantee_limits_receivers_under_thesis_too():
    """Two senders of 8 Mbit/s into a NIC of 8: the thesis (3.7) limits only what they transmit, but
    a guarantee of which the receiver can carry half is none."""
    made = graph({"A": 1.0, "B": 1.0, "C": 1.0}, [("A", ["C"], 10**6), ("B", ["C"], 10**6)])
    for sharing in ("strict", "guarantee"):
        placement = placement_of(Problem(made, cluster(3), sharing, "thesis"), [0, 1, 2])
        assert check(made, placement) == ()
        rows = (("s1", "s3", "a", 8e6), ("s2", "s3", "a", 8e6))
        found = check(made, placement.model_copy(update={"rates_bits_per_second": rows}))
        said = [str(v) for v in found if "receives" in v.what]
        limited = "receives 16000000 bit/s in all; 8000000 bit/s of its NIC can be used"
        expected = [f"rates_bits_per_second.s3.a: {limited}"]
        assert said == (expected if sharing == "guarantee" else [])


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
        rows = [message.model_copy(update={"send_order": rank}) for message in job.messages]
        said = complaints(job.model_copy(update={"messages": tuple(rows)}))
        assert said
        assert all(c.startswith("messages.") and "given twice, or is not" in c for c in said)
    strict = of_sharing("strict")
    rows = [message.model_copy(update={"send_order": 7}) for message in strict.messages]
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
    swapped = [m.model_copy(update={"send_order": 1 - m.send_order}) for m in placement.messages]
    (found,) = check(made, placement.model_copy(update={"messages": tuple(swapped)}))
    assert found.where == "step_seconds"
    assert float(str(found).split()[-1]) == pytest.approx(3.0)


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "even", "unshaped"])
def test_parts_that_share_nics_may_each_end_a_nanosecond_apart(sharing):
    """In a step of 0.2 ms a nanosecond is more than a millionth."""
    made = graph({"A": 1e-5, "B": 1e-5, "C": 1e-5}, [("A", ["C"], 50), ("B", ["C"], 100)])
    problem = Problem(made, cluster(3), sharing)
    good = placement_of(problem, [0, 1, 2])
    assert len(good.messages) == 2 and good.step_seconds < 3e-4

    def later(seconds):
        step = good.step_seconds + seconds
        update = {"step_seconds": step, "gap": 1 - good.bound_seconds / step}
        return [v.where for v in check(made, good.model_copy(update=update))]

    assert later(1.8e-9) == (
        [] if sharing in ("guarantee", "job", "unshaped") else ["step_seconds"]
    )
    assert later(2.9e-9) == ["step_seconds"]


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "even", "unshaped"])
def test_nccl_cuts_equally_over_all_rails_of_a_pair(sharing):
    placement = of_sharing(sharing, "nccl", (8e6, 10e6))
    assert max(placement.messages, key=lambda m: m.bytes).rails == {"a": 0.5, "b": 0.5}
    for rails in ({"a": 0.25, "b": 0.75}, {"a": 1.0}, {"b": 1.0}):
        (said,) = complaints(with_messages(placement, rails=rails))
        assert said.startswith("message of 'A' to s3/0: shares")
        assert said.endswith("nccl cuts it equally over 2 of its rails")
    # The rates that strict decides for it are equal; under the others its rail b is faster.
    fastest, other = "ab" if sharing == "strict" else "ba"
    for rails in ({"a": 0.5, "b": 0.5}, {other: 1.0}):
        (said,) = complaints(with_small_messages(placement, rails))
        assert said.startswith("message of 'B' to s3/0: shares")
        assert said.endswith(f"travel on the fastest of its rails alone, {fastest!r}")


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "even", "unshaped"])
def test_gloo_cuts_in_proportion_to_the_rates_of_a_pair(sharing):
    placement = of_sharing(sharing)
    large = max(placement.messages, key=lambda m: m.bytes).rails
    assert 0 < large["a"] < large["b"] < 1
    for rails in ({"a": 0.5, "b": 0.5}, {"a": large["b"], "b": large["a"]}, {"b": 1.0}):
        (said,) = complaints(with_messages(placement, rails=rails))
        assert said.startswith("message of 'A' to s3/0: shares")
        assert "it is cut in proportion to its pair's rates, {'a': 0." in said
    # A part less than the tolerance is rounding.
    within = {"a": large["a"] + 1e-8, "b": large["b"] - 1e-8}
    assert complaints(with_messages(placement, rails=within)) == []
    for rails in ({"a": 0.5, "b": 0.5}, {"a": 1.0}):
        (said,) = complaints(with_small_messages(placement, rails))
        assert said.endswith("travel on the fastest of its rails alone, 'b'")


def test_of_equally_fast_rails_the_first_carries_small_messages():
    """So the simulator does: else two small messages could pass each other on two rails."""
    placement = of_sharing("strict", nics=(8e6, 8e6))
    (said,) = complaints(with_small_messages(placement, {"b": 1.0}))
    assert said.endswith("travel on the fastest of its rails alone, 'a'")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_thesis_cuts_every_message_in_proportion(backend):
    problem = Problem(PROBLEM.graph, PROBLEM.cluster, "strict", "thesis", backend)
    placement = placement_of(problem, [0, 1, 2, 2])
    assert complaints(placement) == []
    (said,) = complaints(with_small_messages(placement, {"b": 1.0}))
    assert "it is cut in proportion to its pair's rates" in said


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
    (said,) = complaints(placement.model_copy(update={"floor": 1.5}))
    assert said.startswith("floor: 1.5 is not a part of a NIC")
    # With nothing kept, the neighbour of 4 leaves 4 of 8 and 12 of 16: as declared here.
    assert complaints(placement.model_copy(update={"floor": 0.0})) == []
    more = complaints(placement.model_copy(update={"floor": 1.0}))
    assert any("it is cut in proportion to its pair's rates" in c for c in more)


def test_msr_is_of_one_server():
    placement = of_sharing("strict").model_copy(update={"model": "msr"})
    assert complaints(placement) == ["cluster.servers: model msr is for the devices of one server"]


def test_thesis_runs_in_the_recorded_sort():
    """A long operator that nothing waits for, recorded before a short one that C waits for: the
    other order takes 1.1 s, while no order of the model takes less than 2.1 s."""
    made = graph({"A": 1.0, "B": 0.1, "C": 1.0}, [("B", ["C"], 1)])
    thesis, contended = (
        placement_of(Problem(made, cluster(2), "strict", model), [0, 0, 1], np.array([2.0, 1, 0]))
        for model in ("thesis", "contended")
    )
    assert check(made, thesis) == check(made, contended) == ()
    assert thesis.order["s1/0"] == ("A", "B")
    other = {"order": {**thesis.order, "s1/0": ("B", "A")}}
    (found,) = check(made, thesis.model_copy(update=other))
    assert found.where == "order.s1/0"
    assert found.what.startswith("runs 'B' before 'A'; under model thesis")
    # Under another model the order is a decision, which only makes another step.
    (found,) = check(made, contended.model_copy(update=other))
    assert found.where == "step_seconds"


def test_a_bound_above_the_quick_one_names_its_proof_which_can_be_run_again():
    """Five operators of 2 on two devices: 6, where the quick bounds see 10 / 2."""
    made = graph(dict.fromkeys("ABCDE", 2.0), [])
    problem = Problem(made, cluster(2))
    placement = placement_of(problem, [0, 0, 0, 1, 1])
    assert placement.step_seconds == pytest.approx(6.0)
    # The proof takes some milliseconds; the limit is for a machine that is busy.
    proven = strong_bound(problem, placement.step_seconds, 60.0)
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
    "send_order": _another_message(lambda m: {"send_order": m.send_order + 1}),
    "rate": _larger_rate,
}


@pytest.mark.parametrize("name", CHANGES)
@settings(
    max_examples=examples(8),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(st.data())
def test_one_thing_changed_is_named(name, data):
    """In a correct placement of any problem, of the sharings in which the thing is a decision."""
    problem = data.draw(problems(models=("contended", "thesis")))
    if name == "send_order":
        problem = replace(problem, sharing="job")
    if name == "rate":
        sharing = data.draw(st.sampled_from(["strict", "guarantee", "even"]))
        problem = replace(problem, sharing=sharing)
    placement = placement_of(problem, data.draw(able_devices(problem)))
    assert check(problem.graph, placement) == ()
    update, places = CHANGES[name](placement, data.draw)
    found = check(problem.graph, placement.model_copy(update=update))
    assert any(v.where.startswith(place) for v in found for place in places.split()), found
