"""Says which rank ended a job, and why, and how all others ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placewire.controller.errors import JobFailed
from placewire.controller.few_names import few_names
from placewire.controller.launch.followed import Followed
from placewire.job.contract.signal_name import signal_name
from placewire.job.contract.specification import RankSpec

# Of what a rank says it failed by.
_LONGEST_FAILURE = 10_000


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


def job_failed(rank: Followed, witness: Followed | None = None) -> JobFailed:
    failure = (witness or rank).failure
    said = failure.what[:_LONGEST_FAILURE] if failure else ""
    if witness is not None:
        what = f"{said} (as rank {witness.process.rank} says)"
    else:
        what = f"rank {rank.process.rank} {_ending(rank.status)}{': ' if said else ''}{said}"
    return JobFailed(
        what + quote(rank.tail),
        where=rank.process.server,
        remedy=failure.remedy if failure else "",
        rank=rank.process.rank,
    )


def about_those_that_may_save(ranks: Sequence[Followed], seconds: float) -> str:
    """ranks: of scripts, which were told to end and take their time."""
    return (
        f"{named(ranks)} not ended yet: a script has {seconds:.0f} s after SIGTERM in which it may "
        "save, and is then killed; its network stays until then"
    )


def about_those_that_stay(ranks: Sequence[Followed]) -> str:
    """ranks: which were told to end, and killed, and of which nobody has heard that they ended."""
    return (
        f"{named(ranks)} not ended yet, though killed: look at the server and the network in "
        "between; what does not end there with its lease is to be ended by hand"
    )


def how_ranks_ended(
    ranks: Sequence[Followed],
    named_already: Sequence[Followed],
    failed: Sequence[Followed],
    stay: Sequence[Followed],
) -> str:
    """named_already: the rank that is blamed, and the one that says so. failed: those that had
    failed before any was ended; all others that had not finished were ended. stay: as above."""
    ended = [one for one in ranks if not one.finished and one not in failed and one not in stay]
    told = []
    if others := [one for one in failed if one not in named_already]:
        told.append(f"{_some(others)} also failed, perhaps because of it")
    if ended:
        told.append(f"{_some(ended)} {'was' if len(ended) == 1 else 'were'} ended")
    if stay:
        told.append(about_those_that_stay(stay))
    return "; ".join(told)


def named(ranks: Sequence[Followed]) -> str:
    """Names each: a person must look at all of them."""
    word, has = ("rank", "has") if len(ranks) == 1 else ("ranks", "have")
    return f"{word} {', '.join(_names(ranks))} {has}"


def _some(ranks: Sequence[Followed]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {few_names(_names(ranks))}"


def _names(ranks: Sequence[Followed]) -> list[str]:
    return [f"{rank.process.rank} ({rank.process.server})" for rank in ranks]


def has_not_begun(latest: Followed, late: Sequence[Followed]) -> JobFailed:
    is_placed = _is_placed(latest)
    return JobFailed(
        f"{named(late)} not begun {latest.starting_seconds:.0f} s after the start"
        + quote(latest.tail),
        where=latest.process.server,
        remedy="look what hangs there: an import from a file server that is away, or the way to "
        "rank 0 over the management network"
        + ("; a model whose function takes so long needs job.start_limit" if is_placed else ""),
        rank=latest.process.rank,
    )


def all_silent(ranks: Sequence[Followed], running: int, seconds: float) -> JobFailed:
    """running: how many of the ranks still run."""
    remedy = "look what the processes wait for there"
    spec = ranks[0].spec
    if isinstance(spec, RankSpec) and _is_placed(ranks[0]):
        remedy = (
            "a `batches(step)` that takes so long is the usual cause: prepare its data before the "
            "job, or print a line from it now and then, as long as it takes less than "
            f"{spec.wait_seconds / 60:.0f} minutes, for which other ranks wait; else look what the "
            "ranks wait for there"
        )
    return JobFailed(
        f"no rank said anything for {seconds:.0f} s{quote(ranks[0].tail)}",
        where=f"{running} of {len(ranks)} ranks still run",
        remedy=remedy,
    )


def _is_placed(rank: Followed) -> bool:
    return isinstance(rank.spec, RankSpec) and rank.spec.kind == "placed"


def _ending(status: int | None) -> str:
    if status is None:
        return "still runs"
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    return f"ended with {status}" if status else "ended with 0 before it had finished"


def quote(tail: Sequence[str]) -> str:
    return "".join(f"\n    {line}" for line in tail)
