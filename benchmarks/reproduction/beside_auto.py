"""`auto` beside the methods of a preset: whose steps are shorter, and which rivals do not count."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.reproduction.findings import Finding
from benchmarks.reproduction.verdicts import ByModel
from placewire.optimizer.published.comparison.presets.preset import Preset, Solved
from placewire.optimizer.published.comparison.ranking import TIE

_MOST_NAMED = 6


def beside_auto(preset: Preset, found: ByModel) -> str:
    """A sentence or two; "" where the preset has no step of `auto`. A rival that the clock ended
    counts only against `auto`: with more time it could not be longer. Those that would count for it
    are named apart, as are those without a placement."""
    won, lost, late, unplaced = 0, [], [], []
    for model, figures in found.items():
        for own, rival in _pairs(preset, model, figures):
            name = f"{rival.what.rpartition(',')[0]} on {model}"
            longer = own.number().high > (1 + TIE) * rival.number().high
            if rival.ended == "unplaced":
                unplaced.append(name)
            elif longer:
                lost.append(name + (" (its own time was over)" if own.ended == "clock" else ""))
            elif rival.ended == "clock":
                late.append(name)
            elif rival.ended == "itself":
                won += 1
    told = []
    if won or lost:
        told.append(
            f"Of {won + len(lost)} steps of other methods, `auto` is as short, within {TIE:.0%}, "
            f"as {won}, or shorter" + (f"; it is longer than {_named(lost)}." if lost else ".")
        )
    if late:
        told.append(
            f"The clock ended these before they were shorter, so that they do not count: "
            f"{_named(late)}."
        )
    if unplaced:
        told.append(f"These have no placement, and do not count: {_named(unplaced)}.")
    return " ".join(told)


def _pairs(
    preset: Preset, model: str, figures: Mapping[str, Finding]
) -> list[tuple[Finding, Finding]]:
    """(auto's figure, another method's) of the same model and devices."""
    steps = [
        (one.asked, figures[one.what])
        for one in preset.figures
        if one.model == model
        and isinstance(one.asked, Solved)
        and one.asked.figure in ("step", "own")
        and one.what in figures
    ]
    own = {
        (asked.on, asked.figure): finding
        for asked, finding in steps
        if asked.method.engine == "auto" and finding.known
    }
    return [
        (own[asked.on, asked.figure], finding)
        for asked, finding in steps
        if asked.method.engine != "auto" and (asked.on, asked.figure) in own
    ]


def _named(names: list[str]) -> str:
    some = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return some if more <= 0 else f"{some} and {more} more"
