"""Numbers that every part of an agent can count with, and that come back from disk as they were.

JSON has no bounds: an endless lease would never run out, one that is no number could not be
compared, and an integer of 400 digits is no float. What is outside is refused as a whole message.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Generation = Annotated[int, Field(ge=0, lt=2**63)]
# A lease outlives a controller; what should stay for good is committed without one.
LONGEST_LEASE_SECONDS = 366 * 86_400.0
LeaseSeconds = Annotated[float, Field(ge=0, le=LONGEST_LEASE_SECONDS)]
LONGEST_MEASUREMENT_SECONDS = 86_400.0
MeasurementSeconds = Annotated[float, Field(ge=0, le=LONGEST_MEASUREMENT_SECONDS)]
# Seconds since 1970, up to the year 5138.
UnixSeconds = Annotated[float, Field(ge=0, le=1e11)]
BitsPerSecond = Annotated[float, Field(ge=0, le=1e15)]
TcpPort = Annotated[int, Field(ge=0, le=65_535)]
