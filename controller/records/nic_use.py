"""What the NICs of a run carried, sampled while its ranks ran."""

from __future__ import annotations

from pydantic import model_validator

from placewire.frozen import Frozen


class NicUseRow(Frozen):
    """All bytes that a NIC had sent and received at each sample, with headers, as its counters
    say; None where its server did not answer in time."""

    server: str
    rail: str
    nic: str
    rate_bits_per_second: float
    sent_bytes: tuple[int | None, ...]
    received_bytes: tuple[int | None, ...]


class NicUse(Frozen):
    """seconds: of each sample, since the job began. step_end_seconds: when the last rank told that
    it had ended a step, by the same clock, from step first_step on; empty for a script. steps_each:
    1, but in a long run, where so many steps have one end, that of the last of them."""

    seconds: tuple[float, ...]
    first_step: int = 0
    steps_each: int = 1
    step_end_seconds: tuple[float, ...] = ()
    nics: tuple[NicUseRow, ...]

    @model_validator(mode="after")
    def _one_count_a_sample(self) -> NicUse:
        for row in self.nics:
            if not len(row.sent_bytes) == len(row.received_bytes) == len(self.seconds):
                raise ValueError(f"{row.server} {row.nic}: not one count for each sample")
        return self
