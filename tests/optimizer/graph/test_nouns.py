"""The nouns as values: a changed copy is the changed value in all that is derived from it."""

from __future__ import annotations

from placewire.optimizer.cluster import Link
from placewire.optimizer.placement import Placement
from tests.optimizer.cases import cluster


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
    placement = Placement.model_construct(
        cluster=cluster(2), rates_bits_per_second=(("s1", "s2", "a", 3.0),)
    )
    assert placement.rates.sum() == 3.0
    changed = placement.model_copy(update={"rates_bits_per_second": ()})
    assert changed.rates.sum() == 0.0
