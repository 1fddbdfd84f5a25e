"""Names a few of many servers or devices, so that a line of them stays a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# So many are named in full.
MOST_NAMES = 8


def few_names(names: Sequence[str]) -> str:
    """s1, s2, s3 -> s1, s2, s3; where they are many: s1, s2, s3 … s32"""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:3])} … {names[-1]}"


def counts_in_words(counts: Mapping[str, int]) -> str:
    """s1 3, s2 4; where they are many: 120 on each of 31 servers (s2, s3, s4 … s32), 122 on s1"""
    if len(counts) <= MOST_NAMES:
        return ", ".join(f"{name} {count}" for name, count in counts.items())
    alike: dict[int, list[str]] = {}
    for name, count in counts.items():
        alike.setdefault(count, []).append(name)
    if len(alike) > MOST_NAMES:
        return f"{min(counts.values())} to {max(counts.values())} on each of {len(counts)} servers"
    largest_first = sorted(alike.items(), key=lambda item: -len(item[1]))
    return ", ".join(
        f"{count} on {names[0]}"
        if len(names) == 1
        else f"{count} on each of {len(names)} servers ({few_names(names)})"
        for count, names in largest_first
    )
