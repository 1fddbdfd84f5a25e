"""Says which rank ended a job, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.controller.errors import JobFailed
from placewire.controller.launch.followed import Followed
from placewire.job.contract.signal_name import signal_name

# Of what a rank says it failed by.
_LONGEST_FAILURE = 10_000
# What is said before ranks are told to end.
ALL_ENDED, _OTHERS_ENDED = "all ranks were ended", "all other ranks were ended"


def culprit(
    failed: Sequence[Followed], ranks: Mapping[int | None, Followed]
) -> tuple[Followed, Followed | None]:
    """Returns the rank to blame, and the rank that says so where that is another.

    A rank that was killed is to blame, else the first that reported a failure or ended. But where
    that rank only reports that it lost another one, which still runs, that other one is to blame.
    """

    def blame(rank: Followed) -> tuple[bool, float]:
        was_killed = rank.status is not None and rank.status < 0
        return (not was_killed, min(rank.exited_seconds, rank.failed_seconds))

    first = min(failed, key=blame)
    lost = ranks.get(first.failure.lost_rank) if first.failure else None
    return (first, None) if lost is None or lost.has_failed else (lost, first)


def job_failed(rank: Followed, witness: Followed | None) -> JobFailed:
    failure = (witness or rank).failure
    said = failure.what[:_LONGEST_FAILURE] if failure else ""
    if witness is not None:
        what = f"{said} (as rank {witness.process.rank} says)"
    else:
        what = f"rank {rank.process.rank} {_ending(rank.status)}{': ' if said else ''}{said}"
    return JobFailed(
        what + quote(rank.tail),
        where=rank.process.server,
        remedy=(failure.remedy if failure else "") or _OTHERS_ENDED,
        rank=rank.process.rank,
    )


def about_those_that_stay(ranks: Sequence[Followed]) -> str:
    """ranks: which were told to end, and killed, and of which nobody has heard that they ended."""
    return (
        f"{named(ranks)} not ended yet, though killed: look at the server and the network in "
        "between; what does not end there with its lease is to be ended by hand"
    )


def say_that_some_stay(failure: JobFailed, ranks: Sequence[Followed]) -> None:
    """The failure was described before anybody knew."""
    for words in (ALL_ENDED, _OTHERS_ENDED):
        failure.remedy = failure.remedy.replace(words, about_those_that_stay(ranks))


def named(ranks: Sequence[Followed]) -> str:
    names = ", ".join(f"{rank.process.rank} ({rank.process.server})" for rank in ranks)
    return f"rank {names} has" if len(ranks) == 1 else f"ranks {names} have"


def has_not_begun(latest: Followed, late: Sequence[Followed]) -> JobFailed:
    return JobFailed(
        f"{named(late)} not begun {latest.starting_seconds:.0f} s after the start"
        + quote(latest.tail),
        where=latest.process.server,
        remedy="look what hangs there: an import from a file server that is away, or the way to "
        f"rank 0 over the management network; {ALL_ENDED}",
        rank=latest.process.rank,
    )


def _ending(status: int | None) -> str:
    if status is None:
        return "still runs"
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    return f"ended with {status}" if status else "ended with 0 before it had finished"


def quote(tail: Sequence[str]) -> str:
    return "".join(f"\n    {line}" for line in tail)
