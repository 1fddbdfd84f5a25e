"""A matrix of what goes from each row's end to each column's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# In a larger matrix a cell has no room for its words, which only its title has.
MOST_WRITTEN = 8
_PALEST_PERCENT = 12


@dataclass(frozen=True)
class Cell:
    """strength_percent: how strong its colour is. kept: whether it is as it was to be."""

    text: str
    title: str
    strength_percent: int
    kept: bool


@dataclass(frozen=True)
class Matrix:
    """cells: a row for each of `sources`, in each a cell or None for each of `destinations`.
    small: whether cells have no words."""

    name: str
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    small: bool


def matrix(
    name: str, order: Sequence[str], cells: Mapping[tuple[str, str], Cell], *, small: bool
) -> Matrix:
    """order: of ends. In a small matrix each of them has a row and a column, so that all matrices
    of a page look alike; in others only those that have a cell."""
    sources = tuple(one for one in order if small or any(source == one for source, _ in cells))
    destinations = tuple(one for one in order if small or any(to == one for _, to in cells))
    rows = (tuple(cells.get((one, other)) for other in destinations) for one in sources)
    return Matrix(name, sources, destinations, tuple(rows), small)


def strength_percent(part: float) -> int:
    """part: of the strongest."""
    return round(_PALEST_PERCENT + (100 - _PALEST_PERCENT) * part)
