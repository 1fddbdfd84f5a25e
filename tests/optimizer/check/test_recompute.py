"""What the check recomputes, against times worked out by hand from the definition of each sharing.

Everywhere 1 byte takes 1 microsecond at 8 Mbit/s, and operators that matter for times take none.
"""

from __future__ import annotations

import pytest

from placewire.optimizer.check.recompute.facts import Facts
from placewire.optimizer.check.recompute.fairness import equal_shares, progressive_filling
from placewire.optimizer.check.recompute.network import (
    ceilings,
    even_rates,
    usable_rates,
    widest_rates,
)
from placewire.optimizer.check.recompute.times import recompute_times
from placewire.optimizer.cluster import Cluster, Device, Link, Nic, Server
from placewire.optimizer.placement import Message, Placement
from tests.optimizer.cases import BYTE_PER_MICROSECOND, graph

MEGA = 1_000_000  # bytes that take a second at 8 Mbit/s


def servers(count, *, rails="a", background=None, devices=1, latency=0.0, links=(), types=("cpu",)):
    """background: (server, bits per second) pairs, on every rail."""
    busy = dict(background or ())
    return Cluster(
        servers=tuple(
            Server(
                name=f"s{k}",
                devices=tuple(
                    Device(type=types[d % len(types)], memory_bytes=10**12) for d in range(devices)
                ),
                nics=tuple(
                    Nic(
                        rail=rail,
                        rate_bits_per_second=BYTE_PER_MICROSECOND,
                        background_bits_per_second=busy.get(f"s{k}", 0.0),
                    )
                    for rail in rails
                ),
            )
            for k in range(count)
        ),
        setup_latency_seconds=latency,
        intra_server_bits_per_second=10 * BYTE_PER_MICROSECOND,
        links=tuple(links),
    )


def arrivals(cluster, sends, sharing, *, model="contended", rates=(), producers=None, rails=None):
    """sends: (name, source device, destination device, bytes), in order of urgency. The producers
    of one device run one after the other; producers: {name: seconds}, 0 where not given."""
    seconds = {name: (producers or {}).get(name, 0.0) for name, *_ in sends}
    home = {name: source for name, source, *_ in sends}
    for name, _, target, _ in sends:
        seconds[f"r{name}"], home[f"r{name}"] = 0.0, target
    made = graph(seconds, [(name, [f"r{name}"], size) for name, *_, size in sends])
    if "accelerator" in {device.type for device in cluster.devices}:
        made = made.with_seconds(dict.fromkeys(("cpu", "accelerator"), made.seconds[:, 0]))
    link = {(k.source, k.destination) for k in cluster.links}

    def shares(source, target):
        inside = source.split("/")[0] == target.split("/")[0] or (source, target) in link
        return {} if inside else rails or {"a": 1.0}

    placement = Placement(
        structure_hash=made.structure_hash,
        profile_digest=made.profile_digest,
        cluster=cluster,
        model=model,
        sharing=sharing,
        operators=home,
        order={
            # Readers last: nobody's sends wait for what arrives.
            device: tuple(sorted((n for n, d in home.items() if d == device), key=_readers_last))
            for device in cluster.device_names
        },
        rates_bits_per_second=tuple(rates),
        messages=tuple(
            Message(
                producer=name, source=source, destination=target, bytes=size, send_order=k,
                rails=shares(source, target),
            )
            for k, (name, source, target, size) in enumerate(sends)
        ),
        step_seconds=0.0, bound_seconds=0.0, gap=0.0, single_device_seconds=None,
        engine="test", reduction="none", seed=0, wall_seconds={},
    )  # fmt: skip
    times = recompute_times(Facts(made, placement))
    assert times is not None
    return {
        name: times.arrival[made.output_tensors(made.index_of[name])[0], target]
        for name, _, target, _ in sends
    }


def with_window(cluster, size, low_water=0):
    """The cluster whose servers, of one NIC each, hand over so many bytes at a time; low_water: how
    many are left then of what goes to another receiver."""
    stated = {"window_bytes": size, "low_water_bytes": low_water}
    changed = [
        server.model_copy(update={"nics": (nic.model_copy(update=stated),)})
        for server in cluster.servers
        for nic in server.nics
    ]
    return cluster.model_copy(update={"servers": tuple(changed)})


def _readers_last(name):
    return name.startswith("r"), name


def test_job_sends_the_most_urgent_first_and_the_rest_afterwards():
    sends = [("A", "s0/0", "s1/0", 1 * MEGA), ("B", "s0/0", "s2/0", 2 * MEGA)]
    assert arrivals(servers(3), sends, "job") == pytest.approx({"A": 1.0, "B": 3.0})
    assert arrivals(servers(3), sends, "unshaped") == pytest.approx({"A": 2.0, "B": 3.0})


def test_job_urgency_interrupts_what_is_under_way_and_set_ups_overlap():
    # B starts at 0; A, more urgent, is queued at 0.5 s behind it on the very same channel.
    sends = [("A", "s0/0", "s1/0", 1 * MEGA), ("B", "s0/1", "s1/0", 2 * MEGA)]
    found = arrivals(servers(2, devices=2), sends, "job", producers={"A": 0.5})
    assert found == pytest.approx({"A": 1.5, "B": 3.0})
    found = arrivals(servers(2, devices=2, latency=0.25), sends, "job", producers={"A": 0.5})
    assert found == pytest.approx({"A": 1.75, "B": 3.25})


def test_what_is_overtaken_does_not_end_before_what_waits_for_its_window():
    """The more urgent A comes half a nanosecond before all that is left of B is handed over."""
    on = with_window(servers(2, devices=2), 300_000)
    sends = [("A", "s0/0", "s1/0", 1 * MEGA), ("B", "s0/1", "s1/0", 2 * MEGA)]
    for before, expected in ((5e-10, 2.0), (0.0, 2.0), (0.1, 3.0)):
        found = arrivals(on, sends, "job", producers={"A": 1.7 - before})
        first = 3.0 if expected == 2.0 else 2.9
        assert found == pytest.approx({"A": first, "B": expected})


def test_one_for_the_same_receiver_waits_for_what_is_left_of_what_was_handed_over():
    """C leaves beside 0.1 of the 0.3 MB of D that are handed over at 1 s. At 1.2 s B waits for the
    0.2 MB that are left of these, beside the last 0.1 MB of C."""
    on = with_window(servers(3, devices=3), 300_000)
    sends = [
        ("B", "s0/2", "s1/0", 1 * MEGA),
        ("C", "s0/1", "s2/0", MEGA // 5),
        ("D", "s0/0", "s1/0", 2 * MEGA),
    ]
    found = arrivals(on, sends, "job", producers={"C": 1.0, "B": 1.2})
    assert found == pytest.approx({"B": 2.5, "C": 1.4, "D": 3.2})


@pytest.mark.parametrize("before", [4e-10, 0.0])
def test_what_is_handed_over_but_for_rounding_leaves_as_a_whole(before):
    """C, D and B as above, but D has 0.3 MB left when C and B come, or as much more as 0.4 ns
    carry. They leave beside C, on behalf of B. At 3 s the more urgent A comes."""
    on = with_window(servers(3, devices=4), 300_000)
    sends = [
        ("C", "s0/1", "s2/0", 2 * MEGA),
        ("A", "s0/3", "s1/0", 1 * MEGA),
        ("B", "s0/2", "s1/0", 1 * MEGA),
        ("D", "s0/0", "s1/0", 2 * MEGA),
    ]
    seconds = {"C": 1.7 - before, "B": 1.7 - before, "A": 3.0}
    found = arrivals(on, sends, "job", producers=seconds)
    assert found == pytest.approx({"C": 4.0, "A": 5.0, "B": 6.0, "D": 2.3})


def test_one_may_come_at_the_moment_in_which_what_was_handed_over_has_left():
    """At 2.6 s 0.3 MB of A have left beside C, and 0.2 MB wait. B, which comes then, and these
    follow C."""
    on = with_window(servers(3, devices=3, latency=1.0), 300_000)
    sends = [
        ("C", "s0/1", "s2/0", 1 * MEGA),
        ("B", "s0/2", "s1/0", 1 * MEGA),
        ("A", "s0/0", "s1/0", 3 * MEGA // 2),
    ]
    found = arrivals(on, sends, "job", producers={"C": 1.0, "B": 1.6})
    assert found == pytest.approx({"C": 3.3, "B": 4.3, "A": 4.5})


def test_the_next_one_begins_beside_the_last_bytes_of_the_most_urgent_one():
    """Of A 75 kB are left at 0.925 s, and leave beside B until 1.075 s. Where C comes at 1.05 s, it
    has a share, too, and 75 kB of B are still handed over when A ends. The last 75 kB of C leave
    beside B again."""
    on = with_window(servers(4, devices=3), 300_000, 75_000)
    sends = [("A", "s0/0", "s1/0", 1 * MEGA), ("B", "s0/1", "s2/0", 2 * MEGA)]
    assert arrivals(on, sends, "job") == pytest.approx({"A": 1.075, "B": 3.0})
    sends.insert(1, ("C", "s0/2", "s3/0", 1 * MEGA))
    found = arrivals(on, sends, "job", producers={"C": 1.05})
    assert found == pytest.approx({"A": 1.0875, "C": 2.225, "B": 4.0})


def test_no_other_one_begins_between_two_for_one_receiver():
    """B would begin beside the last bytes of A, but for C, which is more urgent than B."""
    on = with_window(servers(3, devices=3), 300_000, 75_000)
    sends = [
        ("A", "s0/0", "s1/0", 1 * MEGA),
        ("C", "s0/1", "s1/0", 1 * MEGA),
        ("B", "s0/2", "s2/0", 1 * MEGA),
    ]
    assert arrivals(on, sends, "job") == pytest.approx({"A": 1.0, "C": 2.075, "B": 3.0})
    late = arrivals(on, sends, "job", producers={"C": 0.95})
    assert late == pytest.approx({"A": 1.075, "C": 2.225, "B": 3.0})


def test_of_two_that_come_when_little_is_left_only_the_more_urgent_one_begins():
    """C and B come at 0.95 s in either order; A has 50 kB left."""
    on = with_window(servers(4, devices=3), 300_000, 75_000)
    for later in ("B", "C"):
        sends = [
            ("A", "s0/0", "s1/0", 1 * MEGA),
            ("C", f"s0/{1 + (later == 'C')}", "s3/0", 1 * MEGA),
            ("B", f"s0/{1 + (later == 'B')}", "s2/0", 1 * MEGA),
        ]
        found = arrivals(on, sends, "job", producers={"B": 0.95, "C": 0.95})
        assert found == pytest.approx({"A": 1.05, "C": 2.075, "B": 3.0})


def test_job_receivers_share_between_senders_and_what_is_left_goes_to_the_next_receiver():
    # s0 and s1 both send to s2 (half each); s0 gives its other half to C, its next for elsewhere.
    sends = [
        ("A", "s0/0", "s2/0", 1 * MEGA),
        ("B", "s1/0", "s2/0", 1 * MEGA),
        ("C", "s0/0", "s3/0", 1 * MEGA),
        ("D", "s0/0", "s2/0", 1 * MEGA),
    ]
    found = arrivals(servers(4), sends, "job")
    assert found == pytest.approx({"A": 2.0, "B": 2.0, "C": 2.0, "D": 3.0})


def test_a_neighbour_is_eight_flows_until_it_has_what_it_wants():
    sends = [("A", "s0/0", "s1/0", 1 * MEGA)]
    greedy = servers(2, background=[("s0", 1e9)])
    assert arrivals(greedy, sends, "unshaped") == pytest.approx({"A": 9.0})
    half = servers(2, background=[("s0", BYTE_PER_MICROSECOND / 2)])
    assert arrivals(half, sends, "unshaped") == pytest.approx({"A": 2.0})
    # Shaped, the job is floor to four fifths whatever the neighbour wants.
    assert arrivals(greedy, sends, "job") == pytest.approx({"A": 1.25})
    assert arrivals(greedy, sends, "unshaped", model="thesis") == pytest.approx({"A": 9.0})


def test_guarantee_lends_what_is_idle_equally_and_no_receiver_drowns():
    mega = BYTE_PER_MICROSECOND
    rates = [("s0", "s1", "a", 0.2 * mega), ("s0", "s2", "a", 0.4 * mega)]
    sends = [("A", "s0/0", "s1/0", MEGA), ("B", "s0/0", "s2/0", MEGA)]
    # Each could have all of its receiver. Together they leave 0.4 of the sender: 0.2 more each.
    found = arrivals(servers(3), sends, "guarantee", rates=rates)
    at = 1 / 0.6
    assert found == pytest.approx({"A": at + (1 - 0.4 * at), "B": at})
    # A receiver with two senders promises each its share of the spare: 0.25 + 0.5 * 0.25/0.5.
    rates = [("s0", "s2", "a", 0.25 * mega), ("s1", "s2", "a", 0.25 * mega)]
    assert arrivals(servers(3), [("A", "s0/0", "s2/0", MEGA)], "guarantee", rates=rates) == (
        pytest.approx({"A": 2.0})
    )
    same = arrivals(
        servers(3), [("A", "s0/0", "s2/0", MEGA)], "guarantee", rates=rates, model="thesis"
    )
    assert same == pytest.approx({"A": 2.0})


def test_guarantee_divides_a_pair_over_its_device_pairs_under_way():
    rates = [("s0", "s1", "a", BYTE_PER_MICROSECOND / 2)]
    sends = [("A", "s0/0", "s1/0", MEGA), ("B", "s0/1", "s1/0", 2 * MEGA)]
    found = arrivals(servers(2, devices=2), sends, "guarantee", rates=rates)
    assert found == pytest.approx({"A": 2.0, "B": 3.0})


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "unshaped"])
def test_a_link_is_first_come_and_never_meets_the_nics(sharing):
    link = Link(source="s0/0", destination="s1/0", setup_latency_seconds=0.5,
                rate_bits_per_second=BYTE_PER_MICROSECOND)  # fmt: skip
    made = servers(2, devices=2, links=[link], latency=0.1)
    # B is more urgent than A and still second: A was there first. C has the NICs to itself.
    sends = [
        ("B", "s0/0", "s1/0", MEGA),
        ("A", "s0/0", "s1/0", MEGA),
        ("C", "s0/1", "s1/0", MEGA),
    ]
    rates = [("s0", "s1", "a", BYTE_PER_MICROSECOND)] if sharing in ("strict", "guarantee") else []
    found = arrivals(made, sends, sharing, rates=rates, producers={"B": 0.25})
    assert found == pytest.approx({"A": 1.5, "B": 2.5, "C": 1.1})
    alone = arrivals(made, sends, sharing, rates=rates, model="thesis")
    assert alone == pytest.approx({"A": 1.5, "B": 1.5, "C": 1.1})


def test_host_memory_is_paid_for_by_accelerators_only():
    made = servers(1, rails="", devices=4, types=("cpu", "accelerator"), latency=0.7)
    sends = [
        ("A", "s0/0", "s0/2", MEGA),
        ("B", "s0/0", "s0/1", MEGA),
        ("C", "s0/1", "s0/0", MEGA),
        ("D", "s0/1", "s0/3", MEGA),
        ("E", "s0/1", "s0/3", MEGA),
    ]
    found = arrivals(made, sends, "unshaped", model="msr")
    assert found == pytest.approx({"A": 0.0, "B": 0.1, "C": 0.1, "D": 0.2, "E": 0.2})


def test_rates_that_can_be_used():
    made = servers(3, background=[("s0", BYTE_PER_MICROSECOND / 4), ("s1", 1e9)])

    def usable(sharing, floor=0.5):
        return Placement.model_construct(  # type: ignore[call-arg]
            cluster=made, sharing=sharing, floor=floor,
            rates_bits_per_second=(("s0", "s2", "a", 1e6), ("s1", "s2", "a", 3e6)),
        )  # fmt: skip

    assert usable_rates(usable("strict")) == {("s0", "a"): 6e6, ("s1", "a"): 4e6, ("s2", "a"): 8e6}
    assert usable_rates(usable("unshaped"))["s1", "a"] == pytest.approx(8e6 / 9)
    assert even_rates(usable("even"))["s0", "s2", "a"] == 3e6
    assert widest_rates(usable("job"))["s0", "s1", "a"] == 4e6
    # s2 has 4e6 to spare, in proportion 1 : 3; nobody exceeds its own NIC.
    assert ceilings(usable("guarantee")) == {("s0", "s2", "a"): 2e6, ("s1", "s2", "a"): 4e6}


def test_filling_and_lending():
    ends = [(("transmit", s), ("receive", t)) for s, t in (("x", "z"), ("x", "w"), ("y", "z"))]
    full = dict.fromkeys([limit for both in ends for limit in both], 6.0)
    assert progressive_filling(ends, full | {("receive", "z"): 4.0}, {}) == [2.0, 4.0, 2.0]
    pairs = [("a", "b", "r"), ("a", "c", "r"), ("a", "d", "r")]
    shares = equal_shares(6.0, dict(zip(pairs, (1.0, 9.0, 2.0), strict=True)))
    assert shares == dict(zip(pairs, (1.0, 3.0, 2.0), strict=True))
