"""Captures example models for presets, models their times, and keeps the graphs.

A graph is kept under all sources that decide it: those of the models, of the capture and of the
modelled devices.

A process of its own captures a model, and only this process loads torch. An error names a model
that is missing or cannot be captured; figures that need its graph are then refused, and the rest
goes on.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.profile.modelled import with_modelled_seconds
from placewire.optimizer.published.comparison.cases import ComparedGraph, read_graph
from placewire.optimizer.published.comparison.presets.preset import Captured

_OPTIMIZER = Path(__file__).resolve().parents[2]
# The folders that decide what is in a graph, and its modelled times.
DECIDING = ("capture", "graph", "profile")


class NotCapturedError(ValueError):
    """Says why there is no graph of a model."""


def captured_graph(
    name: str, model: Captured, devices: Sequence[str], folder: Path, say: Callable[[str], None]
) -> ComparedGraph:
    """Reads the graph from the folder, where it is made first if it is missing. Raises
    NotCapturedError, OSError."""
    source = _source(model.function)
    decided = f"{model} {','.join(devices)} {graph_sources_digest(source.parent)}"
    digest = hashlib.sha256(decided.encode()).hexdigest()[:12]
    kept = f"{name.replace(' ', '-').lower()}.{digest}.json.gz"
    file = folder / kept
    if not file.exists():
        say(f"capturing {model.function}, batch {model.batch}")
        folder.mkdir(parents=True, exist_ok=True)
        bare = folder / f"bare-{kept}"
        _capture(model, bare)
        save_graph(with_modelled_seconds(load_graph(bare), devices), file)
        bare.unlink()
    return read_graph(file, name)


def graph_sources_digest(models: Path) -> str:
    """models: the folder of a model's module, and of those that it imports."""
    digest = hashlib.sha256()
    for folder in (models, *(_OPTIMIZER / name for name in DECIDING)):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _source(function: str) -> Path:
    module, _, step = function.partition(":")
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        raise NotCapturedError(f"there is no model {module}")
    source = Path(found.origin)
    if f"def {step}(" not in source.read_text():
        raise NotCapturedError(f"{module} has no {step}")
    return source


def _capture(model: Captured, file: Path) -> None:
    command = [
        sys.executable, "-m", "placewire.optimizer.commands.capture", model.function,
        "--batch", str(model.batch), "--out", str(file),
        *(["--inference"] if model.inference else []), *(["--half"] if model.half else []),
        *(["--decompose"] if model.decompose else []),
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        last = said[-1] if said else f"the process ended with {done.returncode}"
        raise NotCapturedError(f"{model.function} could not be captured: {last}")
