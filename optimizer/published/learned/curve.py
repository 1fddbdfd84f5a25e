"""Writes a training curve to a file: rows for a spreadsheet, or a picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from placewire.optimizer.published.learned.trials import Episode


def write_curve(curve: Sequence[Episode], path: Path, title: str) -> None:
    """Writes a picture where the name ends in .png, else comma-separated values with a heading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        draw_curve({title: curve}, path)
        return
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Episode)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in curve)


def draw_curve(curves: dict[str, Sequence[Episode]], path: Path) -> None:
    """Draws a panel per curve: each episode's mean and shortest step, and the shortest so far."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(5 * len(curves), 4), squeeze=False)
    for axis, (title, curve) in zip(axes[0], curves.items(), strict=True):
        tried = [row.placements for row in curve]
        for name, words in (
            ("mean_step_seconds", "mean of an episode"),
            ("best_step_seconds", "best of an episode"),
            ("best_so_far_seconds", "best so far"),
        ):
            axis.plot(tried, [getattr(row, name) * 1e3 for row in curve], label=words)
        axis.set(title=title, xlabel="placements tried", ylabel="step ms", yscale="log")
        axis.grid(visible=True, alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
