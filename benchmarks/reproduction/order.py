"""The order in which the list is run: what decides claims in the least time comes first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.reproduction.entry import Entry
from benchmarks.reproduction.keys import preset_of
from placewire.optimizer.published.comparison.presets.preset import Preset, Solved, solves_of


def cheapest_first(entries: Iterable[Entry]) -> list[Entry]:
    """By the seconds that its solves may take for each claim, of which those do not count that an
    earlier entry has as well. Those that take none keep their order."""
    left = [(entry, _limits(entry)) for entry in entries]
    ordered, there = list[Entry](), set[Any]()

    def seconds_a_claim(one: tuple[Entry, dict[Any, float]]) -> float:
        entry, limits = one
        new = sum(seconds for solve, seconds in limits.items() if solve not in there)
        return new / max(len(entry.claims), 1)

    while left:
        chosen = min(left, key=seconds_a_claim)
        left.remove(chosen)
        ordered.append(chosen[0])
        there.update(chosen[1])
    return ordered


def solves_in(preset: Preset, model: str) -> list[Solved]:
    """The solves of a model's figures, each once: figures may ask different things of one."""
    found: dict[tuple[object, ...], Solved] = {}
    for figure in preset.figures:
        if figure.model == model:
            for one in solves_of(figure.asked):
                found.setdefault((one.on, one.method), one)
    return list(found.values())


def _limits(entry: Entry) -> dict[Any, float]:
    """The seconds that each solve may take, by all that decides it."""
    preset, limits = preset_of(entry), dict[Any, float]()
    if preset is None:
        return limits
    for model, captured in preset.models.items():
        for one in solves_in(preset, model):
            decides = (captured, preset.devices, preset.clusters[one.on].digest, one.method)
            limits[decides] = one.method.time_limit_seconds
    return limits
