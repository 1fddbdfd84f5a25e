"""Draws a comparison as two pictures: each method's distance from the best, and its search time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.optimizer.published.comparison.ranking import rankings
from placewire.optimizer.published.comparison.rows import Row

_MARKERS = "os^vD<>pP*Xhd8"
# Steps beyond this many times the best are drawn here.
_WORST = 10.0


@dataclass(frozen=True)
class Placed:
    """A point. setting: graph and cluster; over_best: at most _WORST."""

    setting: str
    row: Row
    over_best: float


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Writes steps.png and search.png; none where nothing was placed. Raises OSError."""
    placed = [
        Placed(f"{ranking.graph}\n{ranking.cluster}", one.row, min(one.over_best, _WORST))
        for ranking in rankings(rows)
        for one in ranking.ranked
        if one.over_best is not None
    ]
    if not placed:
        return []
    import matplotlib as mpl

    mpl.use("Agg")
    methods: dict[str, list[Placed]] = {}
    axes_of = _distinguishing_axes(rows)
    for one in placed:
        words = [one.row.engine, *(str(getattr(one.row, axis)) for axis in axes_of[one.row.engine])]
        methods.setdefault(" ".join(words), []).append(one)
    settings = list(dict.fromkeys(one.setting for one in placed))
    width = max(8.0, 0.9 * len(settings) + 4.0)
    figure, axes = _scattered(methods, width, lambda one: settings.index(one.setting))
    axes.set_xticks(range(len(settings)), settings, rotation=60, ha="right", fontsize=7)
    _finish(figure, axes, folder / "steps.png")
    figure, axes = _scattered(methods, 8.0, lambda one: one.row.search_seconds)
    axes.set(xscale="log", xlabel="search, seconds")
    _finish(figure, axes, folder / "search.png")
    return [folder / "steps.png", folder / "search.png"]


def _distinguishing_axes(rows: Sequence[Row]) -> dict[str, list[str]]:
    """For each engine, those of reduction and model in which its rows differ."""
    return {
        engine: [
            axis
            for axis in ("reduction", "model")
            if len({getattr(row, axis) for row in rows if row.engine == engine}) > 1
        ]
        for engine in {row.engine for row in rows}
    }


def _scattered(
    methods: dict[str, list[Placed]], width: float, x_of: Callable[[Placed], float]
) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, 5.0))
    axes.set(yscale="log", ylabel="step / the best of its graph")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.grid(visible=True, alpha=0.3)
    for k, (name, mine) in enumerate(methods.items()):
        axes.scatter(
            [x_of(one) for one in mine], [one.over_best for one in mine], label=name,
            marker=_MARKERS[k % len(_MARKERS)], color=f"C{k % 10}", s=28, alpha=0.8,
        )  # fmt: skip
    return figure, axes


def _finish(figure: Any, axes: Any, file: Path) -> None:
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.legend(fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.savefig(file, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
