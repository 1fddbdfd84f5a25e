"""Into how many micro-batches and shards a step may be cut, where that is to be decided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewire.optimizer.capture.variants import Cut, cuts


@st.composite
def questions(draw: st.DrawFn) -> dict[str, object]:
    numbers = st.lists(st.integers(1, 6), min_size=1, max_size=3)
    return {
        "accumulate": draw(st.one_of(st.just("auto"), numbers)),
        "shards": draw(st.one_of(st.just("auto"), numbers)),
        "batch": draw(st.integers(1, 96)),
        "devices": draw(st.integers(1, 20)),
        "shardable": draw(st.booleans()),
    }


@given(questions())
def test_every_cut_is_one_of_those_asked_for_and_none_is_there_twice(asked) -> None:
    found = cuts(**asked)
    assert found and list(found) == sorted(set(found))
    for cut in found:
        if asked["accumulate"] == "auto":
            assert asked["batch"] % cut.accumulate == 0
            powers = {2**k for k in range(5) if 2**k <= 4 * asked["devices"]}
            assert cut.accumulate in {*powers, asked["devices"]}
        else:
            assert cut.accumulate in asked["accumulate"]
        if asked["shards"] == "auto":
            assert cut.shards in (1, asked["devices"])
            assert cut.shards == 1 or (asked["shardable"] and cut.accumulate > 1)
        else:
            assert cut.shards in asked["shards"]


@given(questions())
def test_numbers_that_are_given_are_all_there(asked) -> None:
    found = set(cuts(**asked))
    if "auto" not in (asked["accumulate"], asked["shards"]):
        pairs = {Cut(a, s) for a in asked["accumulate"] for s in asked["shards"]}
        assert found == pairs
    if asked["accumulate"] == "auto":
        assert 1 in {cut.accumulate for cut in found}, "the whole batch is always a choice"
    if asked["shards"] == "auto":
        assert {cut.accumulate for cut in found} == {c.accumulate for c in found if c.shards == 1}


@pytest.mark.parametrize(
    ("batch", "devices", "counts"),
    [
        (32, 4, (1, 2, 4, 8, 16)),
        (32, 2, (1, 2, 4, 8)),
        (30, 3, (1, 2, 3)),
        (12, 3, (1, 2, 3, 4)),
        (7, 4, (1,)),
        (40, 20, (1, 2, 4, 8, 20)),
    ],
)
def test_auto_is_the_devices_and_powers_of_two(batch: int, devices: int, counts: tuple) -> None:
    found = cuts("auto", [1], batch=batch, devices=devices, shardable=True)
    assert found == tuple(Cut(count, 1) for count in counts)


def test_shards_are_one_or_one_for_each_device() -> None:
    both = cuts([4], "auto", batch=8, devices=3, shardable=True)
    assert both == (Cut(4, 1), Cut(4, 3))
    assert cuts([4], "auto", batch=8, devices=3, shardable=False) == (Cut(4, 1),)
    assert cuts([1, 2], "auto", batch=8, devices=2, shardable=True) == (
        Cut(1, 1), Cut(2, 1), Cut(2, 2),
    )  # fmt: skip
