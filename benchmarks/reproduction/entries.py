"""The list: every table and figure of the five papers."""

from __future__ import annotations

from benchmarks.reproduction import celeritas, hsdag, icc, moirai, thesis
from benchmarks.reproduction.entry import Entry, Illustrations

_PAPERS = (thesis, icc, celeritas, hsdag, moirai)
ENTRIES: tuple[Entry, ...] = tuple(entry for paper in _PAPERS for entry in paper.ENTRIES)
ILLUSTRATIONS: Illustrations = tuple(one for paper in _PAPERS for one in paper.ILLUSTRATIONS)
