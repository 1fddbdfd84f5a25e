"""A comparison in two pictures: how far each method is from the best, and what that took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewire.optimizer.published.comparison.ranking import rankings
from placewire.optimizer.published.comparison.rows import Row

_MARKERS = "os^vD<>pP*Xhd8"
# Beyond this many times the best step, how far no longer matters.
_WORST = 10.0


@dataclass(frozen=True)
class Placed:
    """setting: graph and cluster; over_best: at most _WORST."""

    setting: str
    row: Row
    over_best: float


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """steps.png and search.png in the folder; () where nothing was placed. Raises OSError."""
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
    told = _told_apart(rows)
    for one in placed:
        words = [one.row.engine, *(str(getattr(one.row, axis)) for axis in told[one.row.engine])]
        methods.setdefault(" ".join(words), []).append(one)
    settings = list(dict.fromkeys(one.setting for one in placed))
    figure, axes = _sheet(max(8.0, 0.9 * len(settings) + 4.0))
    for k, (name, mine) in enumerate(methods.items()):
        _scatter(axes, [settings.index(one.setting) for one in mine], mine, k, name)
    axes.set_xticks(range(len(settings)), settings, rotation=60, ha="right", fontsize=7)
    _finish(figure, axes, folder / "steps.png")
    figure, axes = _sheet(8.0)
    for k, (name, mine) in enumerate(methods.items()):
        _scatter(axes, [one.row.search_seconds for one in mine], mine, k, name)
    axes.set(xscale="log", xlabel="search, seconds")
    _finish(figure, axes, folder / "search.png")
    return [folder / "steps.png", folder / "search.png"]


def _told_apart(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Of each engine what else tells its rows apart."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for axis in ("reduction", "model"):
            values.setdefault((row.engine, axis), set()).add(getattr(row, axis))
    return {
        engine: [axis for axis in ("reduction", "model") if len(values[engine, axis]) > 1]
        for engine, _ in values
    }


def _sheet(width: float) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, 5.0))
    axes.set(yscale="log", ylabel="step / the best of its graph")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _scatter(axes: Any, x: Sequence[float], mine: Sequence[Placed], k: int, name: str) -> None:
    over = [one.over_best for one in mine]
    marker = _MARKERS[k % len(_MARKERS)]
    axes.scatter(x, over, label=name, marker=marker, color=f"C{k % 10}", s=28, alpha=0.8)


def _finish(figure: Any, axes: Any, file: Path) -> None:
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.legend(fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.savefig(file, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
