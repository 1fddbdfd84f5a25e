"""The simulator against examples worked by hand. Rates of 1 byte per microsecond unless said."""

from __future__ import annotations

import numpy as np
import pytest

from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import Problem
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, full_rates, graph


def run(problem, device, order=None, rates=None, priority=None):
    if rates is None and problem.sharing == "strict":
        rates = full_rates(problem)
    return simulate(problem, np.array(device), priority, order, rates)


def two_senders():
    """A then B on the first device, each sends 1 s worth of bytes to a reader on the second."""
    return graph(
        {"A": 1.0, "B": 1.0, "C": 0.5, "D": 0.5},
        [("A", ["C"], 1_000_000), ("B", ["D"], 1_000_000)],
    )


def test_one_transfer_takes_latency_plus_bytes_over_rate():
    # A 0-2; 2 MB at 1 MB/s after 0.5 s of set-up: 2-4.5; B 4.5-7.5
    problem = Problem(graph({"A": 2.0, "B": 3.0}, [("A", ["B"], 2_000_000)]), cluster(latency=0.5))
    for model in ("contended", "thesis"):
        timeline = run(Problem(problem.graph, problem.cluster, "strict", model), [0, 1])
        assert timeline.step_seconds == pytest.approx(7.5)
        (message,) = timeline.messages
        assert (message.queued_seconds, message.start_seconds) == pytest.approx((2.0, 2.0))
        assert message.finish_seconds == pytest.approx(4.5)
        assert timeline.transmit_busy_seconds[0, 0] == pytest.approx(2.0)
        assert timeline.receive_busy_seconds[1, 0] == pytest.approx(2.0)


def test_messages_of_a_channel_queue_in_contended_and_not_in_thesis():
    # A 0-1, B 1-2. Messages take 0.5 + 2 and 0.5 + 1. The first: 1-3.5. The second is queued at 2,
    # starts at 3, so that it is set up at 3.5, and arrives at 4.5; D 4.5-5. Without contention it
    # goes 2-3.5, C 3.5-4 and D 4-4.5.
    made = graph(
        {"A": 1.0, "B": 1.0, "C": 0.5, "D": 0.5},
        [("A", ["C"], 2_000_000), ("B", ["D"], 1_000_000)],
    )
    queued = run(Problem(made, cluster(latency=0.5)), [0, 0, 1, 1], [[0, 1], [2, 3]])
    assert queued.step_seconds == pytest.approx(5.0)
    assert queued.messages[1].queued_seconds == pytest.approx(2.0)
    assert queued.messages[1].start_seconds == pytest.approx(3.0)
    free = run(Problem(made, cluster(latency=0.5), model="thesis"), [0, 0, 1, 1])
    assert free.step_seconds == pytest.approx(4.5)


def test_a_tensor_is_sent_once_to_a_device():
    # Both readers wait for one message of 1 s: A 0-1, B 2-3, C 3-4.
    made = graph({"A": 1.0, "B": 1.0, "C": 1.0}, [("A", ["B", "C"], 1_000_000)])
    timeline = run(Problem(made, cluster()), [0, 1, 1], [[0], [1, 2]])
    assert len(timeline.messages) == 1
    assert timeline.step_seconds == pytest.approx(4.0)


@pytest.mark.parametrize("sharing", ["job", "guarantee", "unshaped"])
def test_a_part_ends_at_its_own_time_where_nothing_on_its_rail_changes(sharing):
    # A message of 1 s; 0.4 ns before its end an operator elsewhere ends, which sends nothing. The
    # check follows parts by other code, and large steps have thousands of such moments.
    made = graph({"A": 1.0, "B": 0.5, "C": 2.0 - 4e-10, "D": 1.0}, [("A", ["B"], 1_000_000)])
    problem = Problem(made, cluster(3), sharing)
    rates = full_rates(problem) if problem.decides_rates else None
    timeline = run(problem, [0, 1, 2, 2], [[0], [1], [2, 3]], rates)
    (message,) = timeline.messages
    assert message.finish_seconds == pytest.approx(2.0, abs=1e-12)


def test_zero_bytes_order_without_a_message():
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 0)])
    for model in ("contended", "thesis"):
        timeline = run(Problem(made, cluster(latency=9.0), "strict", model), [0, 1])
        assert timeline.messages == ()
        assert timeline.step_seconds == pytest.approx(2.0)


def test_a_large_message_is_cut_over_the_rails_a_small_one_is_not():
    # Rails of 1 and 3 MB/s. 400 kB cut 1:3 takes 0.1 s; 60 kB go over the faster one: 0.02 s.
    rates = (BYTE_PER_MICROSECOND, 3 * BYTE_PER_MICROSECOND)
    big = run(
        Problem(graph({"A": 0.0, "B": 0.0}, [("A", ["B"], 400_000)]), cluster(2, rates)), [0, 1]
    )
    assert big.step_seconds == pytest.approx(0.1)
    assert big.messages[0].rails == pytest.approx((0.25, 0.75))
    small = run(
        Problem(graph({"A": 0.0, "B": 0.0}, [("A", ["B"], 60_000)]), cluster(2, rates)), [0, 1]
    )
    assert small.step_seconds == pytest.approx(0.02)
    assert small.messages[0].rails == (0.0, 1.0)


def test_device_pairs_share_their_servers_rate_equally():
    # Two devices per server. A on s1/0 -> C on s2/0 alone: 1 s. With B on s1/1 -> D on s2/1 the
    # rate is halved for both: 2 s each, also for the one that starts when the other is done.
    problem = Problem(two_senders(), cluster(devices=2))
    alone = run(problem, [0, 0, 2, 2], [[0, 1], [], [2, 3], []])
    assert alone.messages[0].finish_seconds == pytest.approx(2.0)
    both = run(problem, [0, 1, 2, 3], [[0], [1], [2], [3]])
    assert [m.finish_seconds for m in both.messages] == pytest.approx([3.0, 3.0])
    assert both.step_seconds == pytest.approx(3.5)


def test_two_devices_of_one_server_use_its_inner_rate():
    # 10 MB/s inside: 1 MB takes 0.1 s and no rail, on either model.
    problem = Problem(two_senders(), cluster(devices=2))
    for model in ("contended", "thesis"):
        timeline = run(Problem(problem.graph, problem.cluster, "strict", model), [0, 0, 1, 1])
        assert timeline.messages[0].finish_seconds == pytest.approx(1.1)
        assert timeline.messages[0].rails == ()
        assert not timeline.transmit_busy_seconds.any()


def test_unshaped_receivers_share_fairly():
    # Two servers send 1 MB each to a third from 1 s on: half a MB/s each until both end at 3 s.
    problem = Problem(two_senders(), cluster(3), "unshaped")
    together = run(problem, [0, 1, 2, 2])
    assert [m.finish_seconds for m in together.messages] == pytest.approx([3.0, 3.0])
    # A 2 MB message beside a 1 MB one: shared until 3 s, then alone: 1 MB more by 4 s.
    uneven = graph(
        {"A": 1.0, "B": 1.0, "C": 0.5, "D": 0.5},
        [("A", ["C"], 2_000_000), ("B", ["D"], 1_000_000)],
    )
    timeline = run(Problem(uneven, cluster(3), "unshaped"), [0, 1, 2, 2])
    assert [m.finish_seconds for m in timeline.messages] == pytest.approx([4.0, 3.0])


def test_unshaped_is_max_min_not_equal_split():
    # s1 sends to s3 and s4; s2 sends to s3. s3's receive side is shared 0.5/0.5, s1's transmit side
    # leaves 0.5 for s4. When A's 1 MB to s3 and B's both end at 3 s, nothing is left.
    made = graph(
        {"A": 1.0, "B": 1.0, "C": 0.0, "D": 0.0},
        [("A", ["C", "D"], 1_000_000), ("B", ["C"], 1_000_000)],
    )
    # A's tensor goes to s3 (C) and to s4 (D); B's to s3.
    timeline = run(Problem(made, cluster(4), "unshaped"), [0, 1, 2, 3])
    assert sorted(m.finish_seconds for m in timeline.messages) == pytest.approx([3.0, 3.0, 3.0])
    # With s3 four times as wide, only s1's transmit side binds: B's message has 1 MB/s.
    wide = cluster(4).model_dump()
    wide["servers"][2]["nics"][0]["rate_bits_per_second"] = 4 * BYTE_PER_MICROSECOND
    wide["servers"][1]["nics"][0]["rate_bits_per_second"] = 2 * BYTE_PER_MICROSECOND
    timeline = run(Problem(made, type(cluster()).model_validate(wide), "unshaped"), [0, 1, 2, 3])
    assert sorted(m.finish_seconds for m in timeline.messages) == pytest.approx([1.5, 3.0, 3.0])


def test_even_splits_each_nic_over_the_other_servers():
    # Three others: a third of 1 MB/s, so 1 MB takes 3 s.
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 1_000_000)])
    assert run(Problem(made, cluster(4), "even"), [0, 1]).step_seconds == pytest.approx(5.0)


def test_priority_decides_among_the_ready_and_the_order_is_reproduced():
    # L needs A and is long: running A first gives 1 + 3 = 4; B first gives 1 + 1 + 3 = 5.
    made = graph({"A": 1.0, "B": 1.0, "L": 3.0}, [("A", ["L"], 0)])
    problem = Problem(made, cluster())
    good = run(problem, [0, 0, 1], priority=np.array([2.0, 1.0, 0.0]))
    bad = run(problem, [0, 0, 1], priority=np.array([1.0, 2.0, 0.0]))
    assert (good.step_seconds, bad.step_seconds) == pytest.approx((4.0, 5.0))
    assert good.order == ((0, 1), (2,))
    again = run(problem, [0, 0, 1], order=good.order)
    assert again.step_seconds == good.step_seconds


def test_ranks_put_the_longest_remaining_path_first():
    made = graph(
        {"A": 1.0, "short": 0.1, "long": 5.0},
        [("A", ["short"], 1_000_000), ("A", ["long"], 1_000_000)],
    )
    timeline = run(Problem(made, cluster()), [0, 1, 1])
    rank = {m.tensor: m.send_order for m in timeline.messages}
    assert rank == {1: 0, 0: 1}


def test_orders_that_wait_for_each_other_are_refused():
    made = graph({"A": 1.0, "B": 1.0, "C": 1.0, "D": 1.0}, [("A", ["B"], 9), ("C", ["D"], 9)])
    # Device 0 runs D before A, device 1 runs B before C.
    with pytest.raises(ValueError, match="wait for each other"):
        run(Problem(made, cluster()), [0, 1, 1, 0], [[3, 0], [1, 2]])
    with pytest.raises(ValueError, match="permutation"):
        run(Problem(made, cluster()), [0, 1, 1, 0], [[3], [1, 2]])


def test_a_pair_without_a_rate_never_delivers():
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 1_000_000)])
    timeline = run(Problem(made, cluster()), [0, 1], rates=np.zeros((2, 2, 1)))
    assert timeline.step_seconds == np.inf


class TestMemory:
    def peak(self, made, device, sharing="strict", model="contended"):
        return run(Problem(made, cluster(), sharing, model), device).peak_memory_bytes.tolist()

    def test_storage_lives_until_its_last_reader(self):
        # Positions: A B C. A (100) is read by B (10) and C (1): all of 100 + 10 + 1 while C runs,
        # if C reads B too; weights 1000 throughout; B's workspace 500 while B runs: 1610.
        made = graph(
            {"A": 1.0, "B": 1.0, "C": 1.0},
            [("A", ["B", "C"], 100), ("B", ["C"], 10)],
            activation_bytes={"A": 100, "B": 10, "C": 1},
            weight_bytes={"A": 1000},
            workspace_bytes={"B": 500},
        )
        assert self.peak(made, [0, 0, 0]) == [1610, 0]
        # Without the edge A -> C, A is gone when C runs; B's moment is the same.
        assert self.peak(made, [0, 0, 0], model="thesis") == [1611, 0]

    def test_a_freed_storage_does_not_count(self):
        # A 100 -> B 60 -> C 60: 160 while B runs, 120 while C runs.
        made = graph(
            {"A": 1.0, "B": 1.0, "C": 1.0},
            [("A", ["B"], 100), ("B", ["C"], 60)],
            activation_bytes={"A": 100, "B": 60, "C": 60},
        )
        assert self.peak(made, [0, 0, 0]) == [160, 0]

    def test_receive_buffers_are_held_from_the_start_and_sends_until_they_arrive(self):
        # On device 1, X (50, nobody reads it) runs at 0 with A's 1 MB posted already.
        # On device 0, A's 1 MB is still being sent (1-2 s) when Y (7) runs at 1 s.
        made = graph(
            {"A": 1.0, "Y": 0.5, "X": 0.5, "B": 1.0},
            [("A", ["B"], 1_000_000), ("A", ["Y"], 0)],
            activation_bytes={"A": 1_000_000, "Y": 7, "X": 50},
        )
        assert self.peak(made, [0, 0, 1, 1]) == [1_000_007, 1_000_050]

    def test_an_item_is_there_as_soon_as_its_tuple(self):
        # T gives a tuple; its item M (40) is taken after Y (7) has run, and was there before.
        rows = [
            OperatorRow("T", "max_pool", {"cpu": 1.0}, colocation="t"),
            OperatorRow("Y", "op", {"cpu": 1.0}, activation_bytes=7),
            OperatorRow("M", "getitem", {"cpu": 0.0}, activation_bytes=40, colocation="t"),
        ]
        tensors = [TensorRow("T", ("M",), 0), TensorRow("T", ("Y",), 0), TensorRow("Y", ("M",), 0)]
        made = build_graph(rows, tensors[:2])
        assert self.peak(made, [0, 0, 0]) == [47, 0]
        # What reads two tensors is no item of one tuple: it allocates where it runs.
        assert self.peak(build_graph(rows, tensors), [0, 0, 0]) == [40, 0]

    def test_a_view_keeps_what_it_stands_on(self):
        # A (100) -> V, a view, -> C, after B (30) has run: A is still there with B.
        made = graph(
            {"A": 1.0, "V": 0.0, "B": 1.0, "C": 1.0},
            [("A", ["V"], 100), ("V", ["B", "C"], 100), ("B", ["C"], 30)],
            activation_bytes={"A": 100, "B": 30, "C": 5},
        )
        assert self.peak(made, [0, 0, 0, 0]) == [135, 0]
        # Across devices the view's reader holds a buffer, and a view of a buffer holds that.
        assert self.peak(made, [0, 1, 1, 1]) == [100, 135]
