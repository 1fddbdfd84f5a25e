"""What a file that is a trace of Placewire must hold: each event and its header, with their types.

Ranks write such files, and whoever can write into their folder may have written another.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from placewire.frozen import Frozen

VERSION = 1
Source = Literal["predicted", "measured"]
Detail = str | int | float

# Thirty years. Arithmetic with such times stays finite and fits into nanoseconds of 64 bits.
_MOST_SECONDS = 1e9
Microseconds = Annotated[float, Field(ge=-_MOST_SECONDS * 1e6, le=_MOST_SECONDS * 1e6)]


class SpanEvent(Frozen):
    """args: the span's step and details; a part of a message names its peer and its producer's
    output."""

    ph: Literal["X"]
    pid: int
    tid: int
    name: str
    cat: str
    ts: Microseconds
    dur: Microseconds
    args: dict[str, Any]

    @model_validator(mode="after")
    def _args_say_what_was_traced(self) -> Self:
        for key, value in self.args.items():
            known = isinstance(value, str | int | float)
            if not known or (isinstance(value, float) and not math.isfinite(value)):
                raise ValueError(f"args.{key}: expected a text or a finite number")
        if not isinstance(self.args.get("step"), int):
            raise ValueError("args.step: expected a whole number")
        if self.cat.endswith((" sends", " receives")):
            if not isinstance(self.args.get("peer"), str):
                raise ValueError("args.peer: a message needs its peer, a text")
            if not isinstance(self.args.get("output"), int):
                raise ValueError("args.output: a message needs its output, a whole number")
        return self


class NameEvent(Frozen):
    """Names or sorts a process or a thread, for viewers alone."""

    ph: Literal["M"]
    pid: int
    tid: int
    name: str
    args: dict[str, Any]


class DeviceEntry(Frozen):
    rank: Annotated[int, Field(ge=0)]
    device: str
    source: Source


class TraceHeader(Frozen):
    """steps: where each step's barrier lies in the file, in microseconds."""

    version: int
    structure_hash: str
    steps: dict[int, Microseconds]
    devices: tuple[DeviceEntry, ...]

    @field_validator("version")
    @classmethod
    def _is_read_here(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(f"the file has version {version}, this release reads {VERSION}")
        return version


class TraceFile(Frozen):
    header: Annotated[TraceHeader, Field(alias="otherData")]
    events: Annotated[
        tuple[Annotated[SpanEvent | NameEvent, Field(discriminator="ph")], ...],
        Field(alias="traceEvents"),
    ]
    time_unit: Annotated[str, Field(alias="displayTimeUnit")] = "ms"

    @model_validator(mode="after")
    def _steps_have_a_barrier(self) -> Self:
        for event in self.events:
            if isinstance(event, SpanEvent) and event.args["step"] not in self.header.steps:
                raise ValueError(f"step {event.args['step']} of an event is not in otherData.steps")
        return self
