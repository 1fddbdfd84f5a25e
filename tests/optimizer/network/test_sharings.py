"""The simulator under each sharing against times worked by hand. Every NIC carries 1 byte per
microsecond, so that 1 MB takes a second; operators that only send or receive take no time."""

from __future__ import annotations

import numpy as np
import pytest

from placewire.optimizer.network.guarantee import lending_ceilings
from placewire.optimizer.network.nics import network_limits
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, graph, without_pods

MEGA = 1_000_000


def sends(*rows):
    """(graph, device) of operators that each send one tensor: (device, seconds before it is sent,
    receiving device, bytes, seconds that its reader takes). Tensor k is row k's."""
    seconds: dict[str, float] = {}
    tensors, home = [], []
    for k, (source, before, target, size, after) in enumerate(rows):
        seconds |= {f"p{k}": before, f"c{k}": after}
        tensors.append((f"p{k}", [f"c{k}"], size))
        home += [source, target]
    return graph(seconds, tensors), np.array(home)


def arrivals(problem, device, rates=None):
    """The arrival of each tensor; producers run in their order, readers as their inputs come."""
    timeline = simulate(problem, device, None, None, rates)
    return [m.finish_seconds for m in sorted(timeline.messages, key=lambda m: m.tensor)]


def with_windows(on, *megabytes):
    """The cluster whose servers hand over so much at a time."""
    servers = tuple(
        server.model_copy(
            update={
                "nics": tuple(
                    nic.model_copy(update={"window_bytes": round(size * MEGA)})
                    for nic in server.nics
                )
            }
        )
        for server, size in zip(on.servers, megabytes, strict=True)
    )
    return on.model_copy(update={"servers": servers})


def table(servers, *rows):
    """float64[S, S, 1]: the rates of rows (source, destination, part of 1 MB/s)."""
    rates = np.zeros((servers, servers, 1))
    for s, t, part in rows:
        rates[s, t, 0] = part * BYTE_PER_MICROSECOND
    return rates


class TestJob:
    def test_an_urgent_message_overtakes_one_that_is_under_way(self):
        # 2 MB leave at 0; at 1 s 1 MB for a reader of 9 s is queued behind it on the same channel.
        made, device = sends((0, 0.0, 1, 2 * MEGA, 0.0), (0, 1.0, 1, MEGA, 9.0))
        assert arrivals(Problem(made, cluster(), "job"), device) == pytest.approx([3.0, 2.0])
        assert arrivals(Problem(made, cluster(), "unshaped"), device) == pytest.approx([2.0, 3.0])

    def test_an_urgent_message_waits_for_what_was_handed_over_before_it(self):
        # Of the 1 MB that is left at 1 s, 0.3 MB lie ready to be sent.
        made, device = sends((0, 0.0, 1, 2 * MEGA, 0.0), (0, 1.0, 1, MEGA, 9.0))
        on = with_windows(cluster(), 0.3, 0.5)
        assert arrivals(Problem(made, on, "job"), device) == pytest.approx([3.0, 2.3])
        assert arrivals(Problem(made, on, "unshaped"), device) == pytest.approx([2.0, 3.0])

    def test_a_message_of_which_all_is_handed_over_is_not_overtaken(self):
        made, device = sends((0, 0.0, 1, 2 * MEGA, 0.0), (0, 1.8, 1, MEGA, 9.0))
        on = with_windows(cluster(), 0.3, 0.3)
        assert arrivals(Problem(made, on, "job"), device) == pytest.approx([2.0, 3.0])

    def test_what_waits_for_a_message_lends_it_its_urgency(self):
        # The last 0.2 MB for s2 go before the message for s3, which is more urgent than these, but
        # less than what waits for them.
        made, device = sends(
            (0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.8, 6, MEGA, 5.0), (2, 1.8, 3, MEGA, 9.0)
        )
        on = with_windows(cluster(3, devices=3), 0.3, 0.3, 0.3)
        assert arrivals(Problem(made, on, "job"), device) == pytest.approx([2.0, 4.0, 3.0])

    def test_of_a_message_that_has_sent_nothing_nothing_was_handed_over(self):
        # The 4 MB for s2 fill the NIC: the first message for s3 waits whole when another comes.
        made, device = sends(
            (0, 0.0, 3, 4 * MEGA, 20.0), (1, 0.1, 6, MEGA // 5, 0.0), (2, 1.0, 6, MEGA, 9.0)
        )
        on = with_windows(cluster(3, devices=3), 0.3, 0.3, 0.3)
        assert arrivals(Problem(made, on, "job"), device) == pytest.approx([4.0, 5.2, 5.0])

    def test_what_was_handed_over_for_another_receiver_leaves_beside_the_urgent_one(self):
        # At 1 s 0.3 MB for s2 lie ready; they and what goes to s3 have half the NIC each until
        # 1.6 s. The rest for s2 waits for the urgent one.
        on = with_windows(cluster(3, devices=3), 0.3, 0.3, 0.3)
        made, device = sends((0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.0, 6, MEGA, 9.0))
        assert arrivals(Problem(made, on, "job"), device) == pytest.approx([3.0, 2.3])
        # A small urgent message waits only for as many bytes as it has itself.
        made, device = sends((0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.0, 6, MEGA // 10, 9.0))
        assert arrivals(Problem(made, on, "job"), device) == pytest.approx([2.1, 1.2])

    def test_what_was_handed_over_once_is_not_handed_over_again(self):
        # At 1.1 s, when a third message comes, 0.25 of the 0.3 MB for s2 are left: all three share.
        # The bytes handed over for s2 and s3 are gone at 1.85 and 1.95 s. Then 0.7 MB of the third
        # message are left, and 0.65 and 0.7 MB of the others.
        made, device = sends(
            (0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.0, 6, MEGA, 5.0), (2, 1.1, 9, MEGA, 9.0)
        )
        on = with_windows(cluster(4, devices=3), 0.3, 0.3, 0.3, 0.3)
        found = arrivals(Problem(made, on, "job"), device)
        assert found == pytest.approx([4.0, 3.3, 2.65])

    def test_a_receiver_that_takes_less_does_not_keep_what_was_handed_over_from_its_share(self):
        # s3 takes 0.9 MB/s. Until 1.6 s both have half of s1's NIC; then s3 has 0.9 and s2 0.1.
        made, device = sends((0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.0, 6, MEGA, 9.0))
        on = with_windows(cluster(3, devices=3), 0.3, 0.3, 0.3)
        slow = on.servers[2].nics[0]
        slow = slow.model_copy(update={"rate_bits_per_second": 0.9 * slow.rate_bits_per_second})
        third = on.servers[2].model_copy(update={"nics": (slow,)})
        on = on.model_copy(update={"servers": (*on.servers[:2], third)})
        found = arrivals(Problem(made, on, "job"), device)
        assert found == pytest.approx([3.0, 1.6 + 0.7 / 0.9])

    def test_one_for_the_same_receiver_waits_for_what_is_left_of_what_was_handed_over(self):
        # At 1.2 s 0.2 of the 0.3 MB for s2 are left. They go before the most urgent message, and
        # beside the last 0.1 MB for s3 until 1.4 s.
        made, device = sends(
            (0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.0, 6, MEGA // 5, 5.0), (2, 1.2, 3, MEGA, 9.0)
        )
        on = with_windows(cluster(3, devices=3), 0.3, 0.3, 0.3)
        found = arrivals(Problem(made, on, "job"), device)
        assert found == pytest.approx([3.2, 1.4, 2.5])

    def test_one_that_comes_as_the_turn_comes_back_waits_for_no_whole_window(self):
        # At 1.2 s all for s3 is sent, and 0.2 of the 0.3 MB for s2 are left.
        made, device = sends(
            (0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.0, 6, MEGA // 10, 5.0), (2, 1.2, 3, MEGA, 9.0)
        )
        on = with_windows(cluster(3, devices=3), 0.3, 0.3, 0.3)
        found = arrivals(Problem(made, on, "job"), device)
        assert found == pytest.approx([3.1, 1.2, 2.4])

    @pytest.mark.parametrize("before", [4e-10, 0.0])
    def test_what_is_handed_over_but_for_rounding_leaves_as_a_whole(self, before):
        # One for s3 comes when 0.3 MB for s2 are left, and maybe as much as 0.4 ns carry.
        made, device = sends((0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.7 - before, 6, MEGA, 9.0))
        on = with_windows(cluster(3, devices=3), 0.3, 0.3, 0.3)
        assert arrivals(Problem(made, on, "job"), device) == pytest.approx([2.3, 3.0])

    @pytest.mark.parametrize("before", [4e-10, 0.0])
    def test_what_lends_its_urgency_is_never_overtaken_afterwards(self, before):
        # At 1.7 s one for s2 waits for the 0.3 MB before it, and both for one for s3 until 4 s;
        # these 0.3 MB leave beside that until 2.3 s. At 3 s a more urgent one for s2 comes.
        made, device = sends(
            (0, 0.0, 4, 2 * MEGA, 0.0), (1, 1.7 - before, 4, MEGA, 5.0),
            (2, 1.7 - before, 8, 2 * MEGA, 9.0), (3, 3.0, 4, MEGA, 7.0),
        )  # fmt: skip
        on = with_windows(cluster(3, devices=4), 0.3, 0.3, 0.3)
        found = arrivals(Problem(made, on, "job"), device)
        assert found == pytest.approx([2.3, 6.0, 4.0, 5.0])

    def test_a_receiver_shares_between_what_was_handed_over_and_other_senders(self):
        # At 1 s 0.4 MB for s3 are handed over, and s2 begins to send there as well.
        made, device = sends(
            (0, 0.0, 2, 2 * MEGA, 0.0), (0, 1.0, 3, MEGA, 9.0), (1, 1.0, 2, MEGA, 1.0)
        )
        on = with_windows(cluster(4), 0.4, 0.4, 0.4, 0.4)
        found = arrivals(Problem(made, on, "job"), device)
        assert found == pytest.approx([3.0, 2.4, 2.4])

    def test_of_two_that_overtake_at_once_one_waits_for_what_was_handed_over(self):
        made, device = sends(
            (0, 0.0, 3, 2 * MEGA, 0.0), (1, 1.0, 3, MEGA, 5.0), (2, 1.0, 3, MEGA, 9.0)
        )
        on = with_windows(cluster(devices=3), 0.3, 0.3)
        assert arrivals(Problem(made, on, "job"), device) == pytest.approx([4.0, 3.3, 2.3])

    def test_the_less_urgent_waits_though_it_was_first(self):
        made, device = sends((0, 0.0, 1, 2 * MEGA, 9.0), (0, 1.0, 1, MEGA, 0.0))
        assert arrivals(Problem(made, cluster(), "job"), device) == pytest.approx([2.0, 3.0])

    def test_receivers_share_fairly_between_senders(self):
        made, device = sends((0, 0.0, 2, MEGA, 9.0), (1, 0.0, 2, MEGA, 0.0))
        assert arrivals(Problem(made, cluster(3), "job"), device) == pytest.approx([2.0, 2.0])

    def test_what_a_throttled_sender_has_left_goes_to_its_next_receiver(self):
        # s1 and s2 share s3 by halves; s1's other half serves its less urgent message to s4.
        made, device = sends((0, 0.0, 2, MEGA, 9.0), (1, 0.0, 2, MEGA, 9.0), (0, 0.0, 3, MEGA, 0.0))
        found = arrivals(Problem(made, cluster(4), "job"), device)
        assert found == pytest.approx([2.0, 2.0, 2.0])
        # Without s2's the urgent one has everything, and the other follows.
        made, device = sends((0, 0.0, 2, MEGA, 9.0), (0, 0.0, 3, MEGA, 0.0))
        found = arrivals(Problem(made, cluster(4), "job"), device)
        assert found == pytest.approx([1.0, 2.0])

    @pytest.mark.parametrize("sharing", ["job", "unshaped", "strict", "even", "guarantee"])
    def test_each_message_is_set_up_from_being_queued(self, sharing):
        # The third is queued when the second has 0.25 s to go, and then waits for its set-up.
        made, device = sends(
            (0, 0.0, 1, MEGA, 9.0), (0, 0.0, 1, MEGA, 8.0), (0, 2.25, 1, MEGA, 0.0)
        )
        rates = table(2, (0, 1, 1.0)) if sharing in ("strict", "guarantee") else None
        found = arrivals(Problem(made, cluster(latency=0.5), sharing), device, rates)
        assert found == pytest.approx([1.5, 2.5, 3.75])

    def test_a_message_that_ends_as_an_urgent_one_comes_has_ended(self):
        # 3 parts of 0.1 s each leave less than nothing or a rounding of the first; either way it
        # is there at 0.3 s, when the urgent one begins, and not behind it.
        made, device = sends((0, 0.0, 1, 300_000, 0.0), (0, 0.3, 1, MEGA, 9.0))
        assert arrivals(Problem(made, cluster(), "job"), device) == pytest.approx([0.3, 1.3])

    def test_ranks_follow_the_longest_path_at_widest_rates(self):
        # Tensor 0's reader takes 1 s; tensor 1's none, but a message of 2 s and 0.5 s follow it.
        made = graph(
            {"a": 0.0, "b": 0.0, "c": 1.0, "d": 0.0, "e": 0.5},
            [("a", ["c"], MEGA), ("b", ["d"], MEGA), ("d", ["e"], 2 * MEGA)],
        )
        for sharing in ("job", "even"):
            timeline = simulate(Problem(made, cluster(3), sharing), np.array([0, 0, 1, 1, 2]))
            rank = {m.tensor: m.send_order for m in timeline.messages}
            assert rank == {1: 0, 0: 1, 2: 2}

    def test_equal_urgency_goes_by_tensor_and_then_by_destination(self):
        made = graph({"a": 0.0, "x": 0.0, "y": 0.0, "z": 0.0},
            [("a", ["y", "x"], MEGA), ("a", ["z"], MEGA)])  # fmt: skip
        timeline = simulate(Problem(made, cluster(4), "job"), np.array([0, 1, 2, 3]))
        by_rank = sorted(timeline.messages, key=lambda m: m.send_order)
        assert [(m.tensor, m.destination) for m in by_rank] == [(0, 1), (0, 2), (1, 3)]
        assert [m.finish_seconds for m in by_rank] == pytest.approx([1.0, 2.0, 3.0])


class TestGuarantee:
    def test_a_pair_that_is_alone_borrows_what_nobody_wants(self):
        made, device = sends((0, 0.0, 1, MEGA, 0.0))
        rates = table(3, (0, 1, 0.25), (0, 2, 0.5))
        assert arrivals(Problem(made, cluster(3), "guarantee"), device, rates) == [1.0]
        assert arrivals(Problem(made, cluster(3), "strict"), device, rates) == [4.0]

    def test_what_a_sender_has_left_is_lent_equally(self):
        # Minimums 0.5 and 0.1: 0.4 is left, 0.2 each: 0.7 and 0.3 until 700 kB and 300 kB are over.
        made, device = sends((0, 0.0, 1, 700_000, 0.0), (0, 0.0, 2, 300_000, 0.0))
        rates = table(3, (0, 1, 0.5), (0, 2, 0.1))
        found = arrivals(Problem(made, cluster(3), "guarantee"), device, rates)
        assert found == pytest.approx([1.0, 1.0])

    def test_a_borrower_never_takes_what_a_receiver_owes_others(self):
        # s3 owes 0.6 and 0.2; its spare 0.2 is 0.15 and 0.05. s1's is 0.75 though s2 is silent.
        rates = table(3, (0, 2, 0.6), (1, 2, 0.2))
        alone, device = sends((0, 0.0, 2, 750_000, 0.0))
        assert arrivals(Problem(alone, cluster(3), "guarantee"), device, rates) == [1.0]
        both, device = sends((0, 0.0, 2, 750_000, 0.0), (1, 0.0, 2, 250_000, 0.0))
        found = arrivals(Problem(both, cluster(3), "guarantee"), device, rates)
        assert found == pytest.approx([1.0, 1.0])

    def test_what_one_pair_may_not_borrow_is_lent_to_the_other(self):
        # s2 owes s4 0.6 and s1 0.2, so that s1 has at most 0.25 to s2: 0.75 are left for s3.
        rates = table(4, (0, 1, 0.2), (3, 1, 0.6), (0, 2, 0.2))
        made, device = sends((0, 0.0, 1, 250_000, 0.0), (0, 0.0, 2, 750_000, 0.0))
        found = arrivals(Problem(made, cluster(4), "guarantee"), device, rates)
        assert found == pytest.approx([1.0, 1.0])

    def test_device_pairs_under_way_at_once_share_their_pairs_rate(self):
        made, device = sends((0, 0.0, 2, MEGA, 0.0), (1, 0.5, 3, MEGA, 0.0))
        problem = Problem(made, cluster(devices=2), "guarantee")
        # Alone until 0.5 s, half each until 1.5 s, the rest alone.
        found = arrivals(problem, device, table(2, (0, 1, 1.0)))
        assert found == pytest.approx([1.5, 2.0])

    def test_a_message_is_cut_by_what_the_pair_may_have_at_most(self):
        # Rails of 1 and 3 MB/s with equal minimums: alone, both are borrowed whole: cut 1 : 3.
        made, device = sends((0, 0.0, 1, 400_000, 0.0))
        where = cluster(2, (BYTE_PER_MICROSECOND, 3 * BYTE_PER_MICROSECOND))
        rates = np.full((2, 2, 2), 0.1 * BYTE_PER_MICROSECOND)
        rates[[0, 1], [0, 1]] = 0.0
        timeline = simulate(Problem(made, where, "guarantee"), device, None, None, rates)
        assert timeline.messages[0].rails == pytest.approx((0.25, 0.75))
        assert timeline.step_seconds == pytest.approx(0.1)

    def test_ceilings_by_hand(self):
        nics = np.array([[1.0], [0.3], [2.0]])
        # Into s3: 0.6 and 0.2 of 2.0, so that 1.2 are lent 3 : 1: 1.5 and 0.5, but s1 has 1.0 and
        # s2 0.3 in all.
        minimums = np.zeros((3, 3, 1))
        minimums[0, 2, 0], minimums[1, 2, 0] = 0.6, 0.2
        limits = network_limits(without_pods(nics))
        highest = lending_ceilings(nics, limits.groups, limits.capacity, minimums)
        assert highest[:, 2, 0] == pytest.approx([1.0, 0.3, 0.0])
        assert not highest[:, :2].any()


class TestBackend:
    RAILS = (BYTE_PER_MICROSECOND, 3 * BYTE_PER_MICROSECOND)

    @pytest.mark.parametrize("sharing", ["strict", "even", "job", "unshaped", "guarantee"])
    def test_nccl_cuts_equally_and_the_slow_rail_rules(self, sharing):
        # 200 kB over each rail: 0.2 s over the slow one; gloo: 100 and 300 kB in 0.1 s.
        made, device = sends((0, 0.0, 1, 400_000, 0.0))
        rates = np.zeros((2, 2, 2))
        rates[0, 1] = self.RAILS
        nccl = Problem(made, cluster(2, self.RAILS), sharing, backend="nccl")
        timeline = simulate(nccl, device, None, None, rates)
        assert timeline.messages[0].rails == (0.5, 0.5)
        assert timeline.step_seconds == pytest.approx(0.2)
        gloo = simulate(Problem(made, cluster(2, self.RAILS), sharing), device, None, None, rates)
        assert gloo.messages[0].rails == pytest.approx((0.25, 0.75))
        assert gloo.step_seconds == pytest.approx(0.1)

    def test_nccl_sends_a_small_message_over_the_fastest_rail(self):
        made, device = sends((0, 0.0, 1, 60_000, 0.0))
        timeline = simulate(
            Problem(made, cluster(2, self.RAILS), "unshaped", backend="nccl"), device
        )
        assert timeline.messages[0].rails == (0.0, 1.0)
        assert timeline.step_seconds == pytest.approx(0.02)
