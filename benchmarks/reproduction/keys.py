"""Digests of what decides the figures of a run: they tell whether it is of the list and the sources
as they are. Of a report that is its table alone: which sources made it is not known here. What a
preset asks for has a digest of its own for each figure, so that a change of sources, which makes a
figure older, can be told from one of settings, which makes it the answer to another question."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT
from benchmarks.reproduction.entry import Entry, FromOwn, FromPreset, FromReport, FromTests
from benchmarks.reproduction.sources import table_text
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.published.comparison.presets import load_preset
from placewire.optimizer.published.comparison.presets.preset import (
    Delays,
    Figure,
    FusedAt,
    Preset,
)

# A graph, its modelled times and a solve of it come from these sources.
SOLVES = ("examples/models", "optimizer")
_READS = Path(__file__).with_name("sources.py")


def preset_of(entry: Entry) -> Preset | None:
    """The figures that the entry asks for; None where they do not come from solves."""
    if isinstance(entry.source, FromPreset):
        return load_preset(entry.source.name)
    return entry.source.make() if isinstance(entry.source, FromOwn) else None


def key_of(entry: Entry, model: str = "") -> str:
    """model: of a preset. What it asks for is in the settings of its figures."""
    source, parts = entry.source, list[str]()
    folders: tuple[str, ...] = SOLVES
    if isinstance(source, FromTests):
        parts = [source.chosen, *(_digest([ROOT / file]) for file in source.files)]
        # tests/controller tests controller.
        tested = {Path(file).parts[1] for file in source.files}
        folders = tuple(sorted({*SOLVES, *tested}))
    elif isinstance(source, FromReport):
        parts, folders = [table_text(source, ROOT), _digest([_READS])], ()
    text = "\n".join((entry.name, model, *parts, *map(sources_digest, folders)))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def settings_of(preset: Preset) -> dict[tuple[str, str], str]:
    """By model and figure."""
    return {(one.model, one.what): setting_of(preset, one) for one in preset.figures}


def setting_of(preset: Preset, figure: Figure) -> str:
    """A digest of all that decides a figure but sources and a run's own terms: the model, the
    devices, what is asked and its cluster. What names no cluster is asked of the first one."""
    decided = [preset.models[figure.model], preset.devices, figure.asked]
    plain = [_plain(one, preset.clusters) for one in decided]
    if isinstance(figure.asked, Delays | FusedAt):
        plain.append(next(iter(preset.clusters.values())).digest)
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(value: Any, clusters: Mapping[str, Cluster]) -> Any:
    """A field with its default is left out, so that a new one changes no digest."""
    if is_dataclass(value):
        told = {"": type(value).__name__}
        for field in fields(value):
            of = getattr(value, field.name)
            if of != field.default:
                is_cluster = field.name == "on"
                told[field.name] = clusters[of].digest if is_cluster else _plain(of, clusters)
        return told
    if isinstance(value, tuple):
        return [_plain(one, clusters) for one in value]
    return value


@cache
def sources_digest(folder: str) -> str:
    return _digest(sorted((ROOT / folder).rglob("*.py")))


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
