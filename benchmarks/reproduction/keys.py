"""Digests of what decides the figures of a run: they tell whether it is of the list and the sources
as they are. Of a report that is its table alone: which sources made it is not known here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from benchmarks.report import ROOT
from benchmarks.reproduction.entry import Entry, FromOwn, FromPreset, FromReport, FromTests
from benchmarks.reproduction.sources import table_text
from placewire.optimizer.published.comparison.presets import load_preset
from placewire.optimizer.published.comparison.presets.preset import Preset

# A graph, its modelled times and a solve of it come from these sources.
SOLVES = ("examples/models", "optimizer")
_READS = Path(__file__).with_name("sources.py")


def preset_of(entry: Entry) -> Preset | None:
    """The figures that the entry asks for; None where they do not come from solves."""
    if isinstance(entry.source, FromPreset):
        return load_preset(entry.source.name)
    return entry.source.make() if isinstance(entry.source, FromOwn) else None


def key_of(entry: Entry, model: str = "", preset: Preset | None = None) -> str:
    """model: of a preset, which is `preset_of` the entry."""
    source = entry.source
    if preset is not None:
        asked = [(one.what, one.asked) for one in preset.figures if one.model == model]
        parts = [repr((preset.models[model], preset.devices, dict(preset.clusters), asked))]
        folders: tuple[str, ...] = SOLVES
    elif isinstance(source, FromTests):
        parts = [source.chosen, *(_digest([ROOT / file]) for file in source.files)]
        # tests/controller tests controller.
        tested = {Path(file).parts[1] for file in source.files}
        folders = tuple(sorted({*SOLVES, *tested}))
    else:
        assert isinstance(source, FromReport)
        parts, folders = [table_text(source, ROOT), _digest([_READS])], ()
    text = "\n".join((entry.name, model, *parts, *map(sources_digest, folders)))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def sources_digest(folder: str) -> str:
    return _digest(sorted((ROOT / folder).rglob("*.py")))


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
