"""Bounded numbers for messages and files: agent and controller can compute with all of them.

JSON has no bounds: an infinite lease would never run out, NaN cannot be compared, and an integer of
400 digits has no float. A message with a number outside these bounds is refused as a whole.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
# What a server counts, in any unit: far more than a kernel counts in 64 bits.
Count = Annotated[int, Field(ge=0, lt=2**100)]
Generation = Annotated[int, Field(ge=0, lt=2**63)]
# A lease outlives a controller; a state that should stay for good is committed without a lease.
LONGEST_LEASE_SECONDS = 366 * 86_400.0
LeaseSeconds = Annotated[float, Field(ge=0, le=LONGEST_LEASE_SECONDS)]
LONGEST_MEASUREMENT_SECONDS = 86_400.0
MeasurementSeconds = Annotated[float, Field(ge=0, le=LONGEST_MEASUREMENT_SECONDS)]
# Seconds since 1970, up to the year 5138.
UnixSeconds = Annotated[float, Field(ge=0, le=1e11)]
# A clock that the controller adds a pause to, and asks by.
ClockUnixSeconds = Annotated[float, Field(ge=0, le=9e10)]
# What an agent tells of times and durations, however its clock is set.
ToldSeconds = Annotated[float, Field(ge=-1e15, le=1e15)]
BitsPerSecond = Annotated[float, Field(ge=0, le=1e15)]
TcpPort = Annotated[int, Field(ge=0, le=65_535)]
