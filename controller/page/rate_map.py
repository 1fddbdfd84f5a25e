"""The map of promised and measured rates: a matrix of pairs of servers for each rail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.page.matrix import MOST_WRITTEN, Cell, Matrix, matrix, strength_percent
from placewire.optimizer.quantities import format_bits_per_second

# So many of those that were not kept are listed.
_MOST_BROKEN = 10


@dataclass(frozen=True)
class RateMap:
    """matrices: by rail, in the order in which links name rails and servers. kept: how many.
    highest: the highest promise, in words. spread: how far measured rates are off, in words.
    broken: the worst of those that were not kept, where a matrix cannot say which."""

    matrices: tuple[Matrix, ...]
    kept: int
    highest: str
    spread: str
    broken: tuple[str, ...]

    @property
    def small(self) -> bool:
        return any(one.small for one in self.matrices)


def rate_map(links: Sequence[LinkMeasurement]) -> RateMap:
    highest = max((link.promised_bits_per_second for link in links), default=0.0)
    servers = tuple(dict.fromkeys(end for link in links for end in (link.source, link.destination)))
    servers = tuple(sorted(servers, key=_number_last))
    small = len(servers) > MOST_WRITTEN
    matrices = []
    for rail in dict.fromkeys(link.rail for link in links):
        cells = {
            (link.source, link.destination): _cell(link, highest, small)
            for link in links
            if link.rail == rail
        }
        matrices.append(matrix(rail, servers, cells, small=small))
    broken = sorted((link for link in links if not _kept(link)), key=_off)
    off = [_off(link) for link in links]
    return RateMap(
        matrices=tuple(matrices),
        kept=len(links) - len(broken),
        highest=format_bits_per_second(highest),
        spread=f"{min(off):+.1%} to {max(off):+.1%}" if off else "",
        broken=tuple(_words(link) for link in broken[:_MOST_BROKEN]) if small else (),
    )


def _number_last(name: str) -> tuple[str, int]:
    """So that s2 is before s10, whichever sends first."""
    word = name.rstrip("0123456789")
    return word, int(name[len(word) :] or 0)


def _kept(link: LinkMeasurement) -> bool:
    return link.within_tolerance and not link.error


def _off(link: LinkMeasurement) -> float:
    promised = link.promised_bits_per_second
    return link.measured_bits_per_second / promised - 1 if promised else 0.0


def _cell(link: LinkMeasurement, highest: float, small: bool) -> Cell:
    promised, measured = link.promised_bits_per_second, link.measured_bits_per_second
    return Cell(
        text="" if small else format_bits_per_second(measured),
        title=_words(link),
        strength_percent=strength_percent(promised / highest if highest else 0.0),
        kept=_kept(link),
    )


def _words(link: LinkMeasurement) -> str:
    promised, measured = link.promised_bits_per_second, link.measured_bits_per_second
    off = f" ({_off(link):+.1%})" if promised else ""
    words = (
        f"{link.source} to {link.destination} on {link.nic}: "
        f"promised {format_bits_per_second(promised)}, "
        f"measured {format_bits_per_second(measured)}{off}"
    )
    return f"{words}; {link.error}" if link.error else words
