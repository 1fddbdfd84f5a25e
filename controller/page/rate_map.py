"""The map of promised and measured rates: a matrix of pairs of servers for each rail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.optimizer.quantities import format_bits_per_second

# In a larger matrix a cell has no room for its rate, which is shown by its colour and its title.
_MOST_SERVERS_WRITTEN = 8
_PALEST_PERCENT = 12


@dataclass(frozen=True)
class RateCell:
    """strength_percent: how strong its colour is, by the promised rate."""

    text: str
    title: str
    strength_percent: int
    kept: bool


@dataclass(frozen=True)
class RateMatrix:
    """cells: a row for each of `sources`, in each a cell or None for each of `destinations`."""

    rail: str
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    cells: tuple[tuple[RateCell | None, ...], ...]
    small: bool


def rate_matrices(links: Sequence[LinkMeasurement]) -> tuple[RateMatrix, ...]:
    """By rail, in the order in which `links` names rails and servers."""
    highest = max((link.promised_bits_per_second for link in links), default=0.0)
    servers = tuple(dict.fromkeys(end for link in links for end in (link.source, link.destination)))
    small = len(servers) > _MOST_SERVERS_WRITTEN
    made = []
    for rail in dict.fromkeys(link.rail for link in links):
        of_rail = {(link.source, link.destination): link for link in links if link.rail == rail}
        sources = tuple(one for one in servers if any(s == one for s, _ in of_rail))
        destinations = tuple(one for one in servers if any(d == one for _, d in of_rail))
        rows = (
            tuple(
                None
                if (link := of_rail.get((source, destination))) is None
                else _cell(link, highest, small)
                for destination in destinations
            )
            for source in sources
        )
        made.append(RateMatrix(rail, sources, destinations, tuple(rows), small))
    return tuple(made)


def _cell(link: LinkMeasurement, highest: float, small: bool) -> RateCell:
    promised, measured = link.promised_bits_per_second, link.measured_bits_per_second
    strength = promised / highest if highest else 0.0
    off = f" ({measured / promised - 1:+.1%})" if promised else ""
    title = (
        f"{link.source} to {link.destination} on {link.nic}: "
        f"promised {format_bits_per_second(promised)}, "
        f"measured {format_bits_per_second(measured)}{off}"
    )
    return RateCell(
        text="" if small else format_bits_per_second(measured),
        title=f"{title}; {link.error}" if link.error else title,
        strength_percent=round(_PALEST_PERCENT + (100 - _PALEST_PERCENT) * strength),
        kept=link.within_tolerance and not link.error,
    )
