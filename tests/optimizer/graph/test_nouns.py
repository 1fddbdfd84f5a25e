"""The nouns as values: a changed copy is the changed value in all that is derived from it."""

from __future__ import annotations

import pytest

from placewire.optimizer.cluster import Link
from placewire.optimizer.engines.place import place
from placewire.optimizer.placement import Placement, PlacementError, placement_from_json
from placewire.optimizer.problem import Problem, SolveSettings
from tests.optimizer.cases import cluster, graph


def test_a_changed_copy_derives_everything_anew():
    before = cluster(2, memory=5)
    assert before.memory_bytes.tolist() == [5, 5]
    assert before.link_of == {}
    link = Link(source="s1/0", destination="s2/0", setup_latency_seconds=0.0,
                rate_bits_per_second=1.0)  # fmt: skip
    after = before.model_copy(update={"links": (link,), "servers": cluster(3, memory=7).servers})
    assert after.memory_bytes.tolist() == [7, 7, 7]
    assert after.device_names == ("s1/0", "s2/0", "s3/0")
    assert after.link_of == {(0, 1): link}
    assert after.digest != before.digest
    assert before.memory_bytes.tolist() == [5, 5]
    assert after == after.model_copy()


def test_the_rates_of_a_changed_placement_are_its_own():
    placement = Placement.model_construct(  # type: ignore[call-arg]
        cluster=cluster(2), rates_bits_per_second=(("s1", "s2", "a", 3.0),)
    )
    assert placement.rates.sum() == 3.0
    changed = placement.model_copy(update={"rates_bits_per_second": ()})
    assert changed.rates.sum() == 0.0


def test_a_placement_of_version_1_is_read_as_one_of_version_3():
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 8)])
    problem = Problem(made, cluster(2), "job", floor=0.5)
    placement = place(problem, "random", SolveSettings(seed=1))
    assert placement.messages
    document = placement.model_dump(mode="json")
    old = {"entitled" if key == "floor" else key: value for key, value in document.items()}
    old |= {
        "version": 1,
        "messages": [
            {"rank" if key == "send_order" else key: value for key, value in message.items()}
            for message in document["messages"]
        ],
    }
    assert placement_from_json(old) == placement
    with pytest.raises(PlacementError, match="version"):
        placement_from_json({**document, "version": 4})
