"""Quantities as people write them, and the names that optimizer and plan share."""

from __future__ import annotations

from typing import get_args

import pytest

from placewire.controller.plan.plan import PlanNetwork, PlanSolve
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.names import SharingName
from placewire.optimizer.quantities import (
    format_step,
    parse_bits_per_second,
    parse_bytes,
    parse_fraction,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_seconds, "1e400s"),
        (parse_seconds, "1e308h"),
        (parse_bits_per_second, "1e400Gbit"),
        (parse_bits_per_second, "1e299Tbit"),
        (parse_bytes, "1e400GiB"),
        (parse_bytes, "1e305GiB"),
        (parse_fraction, "1e400%"),
        (parse_fraction, float("inf")),
        (parse_fraction, float("nan")),
    ],
)
def test_a_quantity_that_is_not_finite_is_refused_with_an_example(parse, text):
    with pytest.raises(ValueError, match="finite"):
        parse(text)


def test_steps_are_told_in_enough_digits():
    assert format_step(0.104371) == "104.371 ms"
    assert format_step(0.9999999999) == "1.000 s"
    assert format_step(0.0000023) == "2.300 µs"
    assert format_step(0.0) == "0.000 µs"


def test_every_engine_and_deployable_sharing_can_be_named_in_a_plan():
    for engine in ENGINES.names:
        assert PlanSolve(engine=engine).engine == engine
    for sharing in ("auto", *get_args(SharingName)):
        assert PlanNetwork(sharing=sharing).sharing == sharing
