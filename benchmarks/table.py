"""Tables as people read them: text of at most 100 columns, and the same as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """The first column is aligned left, the others right; notes are printed below."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[k]) for line in lines) for k in range(len(self.columns))]
        body = [
            "  ".join(_cell(line[k], widths[k], k) for k in range(len(widths))) for line in lines
        ]
        return "\n".join([self.title, "", *(line.rstrip() for line in body), "", *self.notes, ""])

    def markdown(self) -> str:
        def row(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        ruler = row(["---", *["---:"] * (len(self.columns) - 1)])
        body = [row(self.columns), ruler, *map(row, self.rows)]
        return "\n".join([f"## {self.title}", "", *body, "", *(f"{note}\n" for note in self.notes)])


def _cell(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column == 0 else text.rjust(width)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f}"
