"""Tells where the kernel held this process back while it measured, because a cgroup has a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_OWN, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_COUNT = "nr_throttled"


@contextmanager
def telling_of_throttling(
    say: Callable[[str], None], own: Path = _OWN, cgroups: Path = _CGROUPS
) -> Iterator[None]:
    """own: says in which cgroup the process is. cgroups: where those of version 2 are mounted."""
    before = throttled_periods(own, cgroups)
    yield
    if (times := throttled_periods(own, cgroups) - before) > 0:
        say(
            f"profile: the kernel held this process back {times} times while it was measured, "
            "because its cgroup may use no more of the processor: these times are too long; "
            "raise the limit (cpu.max, of a container --cpus), or take fewer threads"
        )


def throttled_periods(own: Path, cgroups: Path) -> int:
    """In how many periods the process's cgroup, or one above it, had used up its processor time; 0
    where that cannot be read."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return 0
    inside = [Path(line.removeprefix("0::/")) for line in lines if line.startswith("0::/")]
    return sum(_throttled(cgroups / up) for one in inside for up in (one, *one.parents))


def _throttled(cgroup: Path) -> int:
    try:
        rows = [line.split() for line in (cgroup / "cpu.stat").read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(row[1]) for row in rows if row[:1] == [_COUNT])
