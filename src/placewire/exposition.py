"""Describes metrics, and writes them as Prometheus' text (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The values of a metric's labels, in their order, and the metric's value.
Sample = tuple[Sequence[str], float]


@dataclass(frozen=True)
class Metric:
    """Names follow Prometheus' conventions: base units, and `_total` for counters. meaning: one
    sentence or two, which Prometheus shows, and docs/reference too."""

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    meaning: str

    def text(self, samples: Iterable[Sample]) -> str:
        """The metric with these samples; "" where there is none."""
        lines = [f"{self.name}{self._labels(values)} {value:.17g}" for values, value in samples]
        if not lines:
            return ""
        head = [f"# HELP {self.name} {self.meaning}", f"# TYPE {self.name} {self.kind}"]
        return "".join(f"{line}\n" for line in (*head, *lines))

    def of(self, labels: Sequence[str], value: float | None) -> str:
        """The metric with one sample; "" where its value is not known."""
        return self.text([] if value is None else [(labels, value)])

    def _labels(self, values: Sequence[str]) -> str:
        named = zip(self.labels, values, strict=True)
        pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in named)
        return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
