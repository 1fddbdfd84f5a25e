"""Messages: do both ends derive the same cut, tags and order?"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewire.job.errors import JobError
from placewire.job.messages.cutting import cut
from placewire.job.messages.rank_messages import rank_messages
from placewire.optimizer.chunks import CUT_BYTES
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.placement import Placement
from tests.placements import cluster_of, placement_of

RAILS = ("a", "b")


def graph() -> OperatorGraph:
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.01}) for i in "pqrs"]
    tensors = [TensorRow("p", ("r", "s"), 1000), TensorRow("q", ("s",), 1 << 20)]
    return build_graph(rows, tensors)


def placement(shares: dict[str, float]) -> Placement:
    devices = {"p": "s1/0", "q": "s1/0", "r": "s2/0", "s": "s3/0"}
    return placement_of(graph(), cluster_of(3, RAILS), devices, shares=shares)


def test_both_ends_agree() -> None:
    chosen = placement({"a": 0.25, "b": 0.75})
    ours = rank_messages(chosen, "s1/0", RAILS)
    theirs = rank_messages(chosen, "s3/0", RAILS)
    assert not ours.receives and not theirs.sends
    assert [m.producer for m in theirs.receives] == ["p", "q"]
    sent = {m.index: m for m in (*ours.sends["p"], *ours.sends["q"]) if m.peer == 2}
    for message in theirs.receives:
        assert message.parts == sent[message.index].parts
        assert message.peer == 0 and message.upward and sent[message.index].upward
        assert message.rail_names == RAILS
    large = theirs.receives[1].parts
    assert [(part.rail, part.start, part.stop) for part in large] == [
        (0, 0, 1 << 18),
        (1, 1 << 18, 1 << 20),
    ]
    # gloo takes interface `tag % rails`.
    assert all(part.tag % len(RAILS) == part.rail for part in large)


def test_most_urgent_first() -> None:
    chosen = placement({"a": 1.0})
    urgent = [m.model_copy(update={"send_order": -i}) for i, m in enumerate(chosen.messages)]
    ours = rank_messages(chosen.model_copy(update={"messages": tuple(urgent)}), "s1/0", RAILS)
    assert [m.peer_device for m in ours.sends["p"]] == ["s3/0", "s2/0"]


def test_tags_are_unique_per_pair() -> None:
    chosen = placement({"a": 0.5, "b": 0.5})
    ours = rank_messages(chosen, "s1/0", RAILS)
    tags = [p.tag for ms in ours.sends.values() for m in ms for p in m.parts]
    assert len(set(tags)) == len(tags) == 6


def test_inside_a_server_one_connection_carries_all() -> None:
    chosen = placement({"a": 1.0})
    inside = tuple(m.model_copy(update={"rails": {}}) for m in chosen.messages)
    ours = rank_messages(chosen.model_copy(update={"messages": inside}), "s1/0", RAILS)
    for message in ours.sends["p"]:
        assert message.rail_names == ("",)
        assert [(part.rail, part.stop) for part in message.parts] == [(0, message.bytes)]


def test_unknown_rails_and_devices_are_refused() -> None:
    with pytest.raises(JobError, match="rail 'b'"):
        rank_messages(placement({"b": 1.0}), "s1/0", ("a",))
    with pytest.raises(JobError, match="runs nothing"):
        rank_messages(placement({"a": 1.0}), "s9/0", RAILS)


@given(
    st.integers(1, 1 << 30),
    st.lists(st.floats(0, 1), min_size=1, max_size=4).filter(lambda shares: sum(shares) > 1e-6),
)
def test_a_cut_covers_the_message_once(size: int, shares: list[float]) -> None:
    parts = cut(size, shares, first_tag=8)
    assert parts[0].start == 0 and parts[-1].stop == size
    assert all(a.stop == b.start for a, b in pairwise(parts))
    for part in parts:
        assert part.stop > part.start and part.start % CUT_BYTES == 0
        assert part.tag == 8 + part.rail
        exact = size * shares[part.rail] / sum(shares)
        assert abs(part.stop - part.start - exact) <= 2 * CUT_BYTES
