"""What ranks told, as a job's record has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placewire.controller.records.job_record import JobRecord
from placewire.job.contract.specification import RankEvent


def record_of(ranks: int, events: Iterable[RankEvent], buckets: Sequence[str] = ()) -> JobRecord:
    record = JobRecord()
    record.begin(ranks, buckets)
    for event in events:
        record.add(event)
    return record
