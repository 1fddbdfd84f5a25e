"""Every number of a message and of a rank's event has bounds: JSON has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from placewire.agent.contract import messages
from placewire.agent.contract.diagnosis import Diagnosis
from placewire.agent.contract.state import ApplyReport
from placewire.frozen import Frozen
from placewire.job.contract.specification import RankEvent

KINDS = [one for one in vars(messages).values() if isinstance(one, type)]
MESSAGES = [one for one in KINDS if issubclass(one, Frozen) and one is not Frozen]
UPPER, LOWER = {"maximum", "exclusiveMaximum"}, {"minimum", "exclusiveMinimum"}
# Shown, and nothing is computed from them: a model's loss may be any finite number.
FREE = {f"{kind}.{field}" for kind in ("StepDone", "Validated") for field in ("loss", "metrics")}


def unbounded(kind: Any) -> set[str]:
    """The fields, as CLASS.FIELD, that hold a number without bounds."""
    schema = TypeAdapter(kind).json_schema()
    named = {schema.get("title", ""): schema, **schema.get("$defs", {})}
    return {
        f"{name}.{field}"
        for name, one in named.items()
        for field, value in one.get("properties", {}).items()
        if any(not (UPPER & set(number) and LOWER & set(number)) for number in _numbers(value))
    }


def _numbers(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number") and "const" not in schema:
            yield schema
        for key, value in schema.items():
            if key not in ("default", "properties"):
                yield from _numbers(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _numbers(value)


@pytest.mark.parametrize(
    "kind", [*MESSAGES, ApplyReport, Diagnosis], ids=lambda kind: kind.__name__
)
def test_a_message_s_numbers_have_bounds(kind: type) -> None:
    assert unbounded(kind) == set()


def test_a_rank_event_s_numbers_have_bounds() -> None:
    assert unbounded(RankEvent) == FREE
