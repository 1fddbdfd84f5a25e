"""What `job` and sharings with queues of their own promise over uplinks of pods, and which senders
are paced.

A NIC carries 8 Mbit/s, and an uplink as much unless a test says otherwise.
"""

from __future__ import annotations

import pytest

from placewire.optimizer.cluster import Cluster, Uplink
from placewire.optimizer.network.script_allocation import allocate, even_traffic
from placewire.optimizer.network.sharing import JobQueue, PromisedRate
from placewire.optimizer.network.sharings import SHARINGS
from placewire.optimizer.network.uplinks import within_uplinks
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, podded


def promised(
    traffic: dict[str, dict[str, float]], where: Cluster
) -> dict[tuple[str, str], tuple[float, bool]]:
    """(rate, paced) of each pair that `job` promises, with a floor of 0.45."""
    policy = SHARINGS["job"]
    asked = policy.promises(policy.queues(allocate(where, traffic, "job", 0.45)))
    return {
        (one.queue.source, one.destination): (round(one.at_least, 3), one.paced)
        for one in within_uplinks(where, asked)
    }


def test_promises_that_exceed_an_uplink_are_lowered_and_paced():
    def promise(source: str, destination: str) -> PromisedRate:
        queue = JobQueue(source, "a", (destination,), 6e6, None, for_the_job=True)
        return PromisedRate(queue, destination, 6e6)

    asked = [promise("s1", "s3"), promise("s2", "s4"), promise("s4", "s3")]
    found = list(within_uplinks(podded(), asked))
    assert [(one.at_least, one.paced) for one in found] == [
        (4e6, True), (4e6, True), (6e6, False),
    ]  # fmt: skip
    assert list(within_uplinks(cluster(4), asked)) == asked


def test_promises_that_fit_are_paced_where_their_senders_could_exceed_an_uplink():
    """Each of two promises of 3.6 Mbit/s comes from a NIC that could fill the uplink."""
    found = promised({"s1": {"s3": 1.0}, "s2": {"s4": 1.0}}, podded())
    assert found["s1", "s3"] == found["s2", "s4"] == (3.6e6, True)
    assert found["s3", "s1"] == found["s4", "s2"] == (3.6e6, True), "servers answer"


@pytest.mark.parametrize(
    ("uplink", "traffic"),
    [
        (2.0, {"s1": {"s3": 1.0}, "s2": {"s4": 1.0}}),
        (1.0, {"s1": {"s3": 1.0}}),
        (1.0, {"s1": {"s2": 1.0}, "s3": {"s4": 1.0}}),
    ],
    ids=["uplinks carry both NICs", "one in each direction", "within pods"],
)
def test_promises_are_not_paced_where_nothing_can_exceed_an_uplink(uplink, traffic):
    found = promised(traffic, podded(uplink))
    assert set(found.values()) == {(3.6e6, False)}


@pytest.mark.parametrize(("into_p2", "lowered"), [(1.0, 3.6e6), (0.25, 2e6)])
def test_promises_to_different_pods_meet_at_the_uplink_of_their_own(into_p2, lowered):
    where = podded(pods={"p1": ("s1", "s2"), "p2": ("s3",), "p3": ("s4",)})
    uplink = (Uplink(rail="a", rate_bits_per_second=into_p2 * BYTE_PER_MICROSECOND),)
    first, second, third = where.pods
    second = second.model_copy(update={"uplinks": uplink})
    where = where.model_copy(update={"pods": (first, second, third)})
    found = promised({"s1": {"s3": 1.0}, "s2": {"s4": 1.0}}, where)
    assert found["s1", "s3"] == (lowered, True)
    assert found["s2", "s4"] == (3.6e6, True)


@pytest.mark.parametrize("sharing", ["strict", "even", "guarantee"])
def test_queues_that_are_capped_within_the_uplinks_need_no_pace(sharing):
    found = allocate(podded(0.5), even_traffic(podded(0.5)), sharing, 0.8)
    policy = SHARINGS[sharing]
    asked = policy.promises(policy.queues(found))
    assert len(asked) == 12
    assert list(within_uplinks(podded(0.5), asked)) == list(asked)
