"""The graphs on which the benchmarks run: captured, synthetic and published.

Captured graphs are kept in $PLACEWIRE_BENCH_CACHE, or ~/.cache/placewire/graphs, under a digest of
the sources that they came from; torch runs in a process of its own. Published graphs are read from
$PLACEWIRE_WORKLOADS, or from ../shared/workloads beside the project, where that exists.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from benchmarks.layered import layered_training_graph
from benchmarks.report import ROOT
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.importer import import_file
from placewire.optimizer.graph.operator_graph import OperatorGraph

__all__ = [
    "CAPTURED", "Published", "captured", "layered_training_graph", "published", "workloads_folder",
]  # fmt: skip

# Model function and batch. The batches of AlexNet, VGG16, FNet and BERT are the thesis' (section
# 5.1).
CAPTURED: Mapping[str, tuple[str, int]] = {
    "alexnet": ("placewire.examples.models.alexnet:training_step", 512),
    "vgg16": ("placewire.examples.models.vgg16:training_step", 512),
    "fnet": ("placewire.examples.models.fnet:training_step", 64),
    "bert": ("placewire.examples.models.bert:training_step", 64),
    "gpt2": ("placewire.examples.models.gpt2:training_step", 64),
    "mlp": ("placewire.examples.models.mlp:training_step", 64),
    "gpt2_small": ("placewire.examples.models.gpt2:training_step_small", 8),
    "deep_transformer": ("placewire.examples.models.deep_transformer:training_step", 32),
    "resnet50": ("placewire.examples.models.resnet50:training_step", 32),
    "inception": ("placewire.examples.models.inception:training_step", 32),
    "two_towers": ("placewire.examples.models.two_towers:training_step", 1024),
}


@dataclass(frozen=True)
class Published:
    """cluster: the file's own devices, and for Moirai's graphs their links."""

    name: str
    format: str
    graph: OperatorGraph
    cluster: Cluster


def captured(name: str, *, decompose: bool = False) -> OperatorGraph:
    """The training step of that name in CAPTURED, without seconds; it is captured only once.
    decompose: as core operators, with the updates written out."""
    model, batch = CAPTURED[name]
    words = ["--decompose"] if decompose else []
    kept = Path.home() / ".cache" / "placewire" / "graphs"
    folder = Path(os.environ.get("PLACEWIRE_BENCH_CACHE", kept))
    file = folder / f"{''.join((name, *words))}.{_sources_digest()}.json.gz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        _capture(model, batch, words, file)
    return load_graph(file)


def published() -> Iterator[Published]:
    """Every graph of the workloads folder, by format and name; none where there is no folder."""
    formats: dict[Literal["moirai", "msr"], dict[str, str]]
    formats = {"moirai": {}, "msr": {"devices": "accelerator"}}
    for form, options in formats.items():
        for file in sorted((workloads_folder() / form).glob("*.json")):
            found = import_file(file, form, options)
            assert found.cluster is not None
            yield Published(file.stem, form, found.graph, found.cluster)


def workloads_folder() -> Path:
    return Path(os.environ.get("PLACEWIRE_WORKLOADS", ROOT.parent / "shared" / "workloads"))


def _sources_digest() -> str:
    """The digest of everything on which a capture depends."""
    digest = hashlib.sha256(version("torch").encode())
    for folder in ("examples/models", "optimizer/capture"):
        for file in sorted((ROOT / folder).glob("*.py")):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _capture(model: str, batch: int, words: Sequence[str], file: Path) -> None:
    """Raises RuntimeError with the output of the capture where it fails."""
    command = [
        sys.executable, "-m", "placewire.optimizer.commands.capture", model, "--batch", str(batch),
        *words, "--out", str(file),
    ]  # fmt: skip
    began = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {said.strip()}")
    seconds, peak = time.monotonic() - began, usage.ru_maxrss / 1024
    last = said.strip().splitlines()[-1]
    took = f"{seconds:.1f} s and {peak:.0f} MiB"
    print(f"captured {model}, batch {batch}, in {took}: {last}", file=sys.stderr, flush=True)
