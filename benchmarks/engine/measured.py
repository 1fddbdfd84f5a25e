"""Timed solves, each in a process of its own; results are kept, so that a run can be taken up.

A result is kept under what decides it: the request, the graph's content, the optimizer's sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import ROOT
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import Model
from placewire.optimizer.placement import Placement, load_placement

CACHE = Path(
    os.environ.get("PLACEWIRE_BENCH_CACHE", Path.home() / ".cache" / "placewire" / "bench")
)


@dataclass(frozen=True)
class Ask:
    """A solve. sharing: a name, or `auto`. moves, instead of a time limit, make it repeatable.
    from_start: whether the time limit counts the start of the process and the graph's reading."""

    graph: Path
    cluster: Cluster
    engine: str = "auto"
    sharing: str = "auto"
    model: Model = "contended"
    reduction: str = "auto"
    time_limit: float = 60.0
    gap: float = 0.0
    seed: int = 0
    moves: int | None = None
    from_start: bool = False

    @property
    def command(self) -> str:
        """The command that a user would type, with the cluster in a file."""
        limit = f"--time-limit {self.time_limit:g}"
        if self.moves is not None:
            limit = f"--moves {self.moves}"
        return (
            f"optimizer solve {self.graph.name} --cluster CLUSTER --engine {self.engine} --sharing "
            f"{self.sharing} --model {self.model} --reduction {self.reduction} --gap {self.gap:g} "
            f"{limit} --seed {self.seed}"
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """trace: (seconds from the engine's start, incumbent, bound) whenever one of them improved.
    startup_seconds: the start of the process, its imports and the reading of the graph.
    wall_seconds: the whole process. considered: the step under each sharing that was tried. file:
    the placement."""

    refusal: str = ""
    startup_seconds: float
    trace: tuple[tuple[float, float, float], ...] = ()
    engine_seconds: float
    wall_seconds: float
    peak_memory_bytes: int
    considered: Mapping[str, float] = field(default_factory=dict)
    file: str

    @property
    def placement(self) -> Placement:
        """Raises RuntimeError where the solve was refused."""
        if self.refusal:
            raise RuntimeError(f"there is no placement: {self.refusal}")
        return load_placement(Path(self.file))


def solve(ask: Ask) -> Result:
    CACHE.mkdir(parents=True, exist_ok=True)
    cluster = ask.cluster.model_dump(mode="json")
    request = {**asdict(ask), "graph": str(ask.graph), "cluster": cluster}
    graph = hashlib.sha256(ask.graph.read_bytes()).hexdigest()
    parts = [json.dumps(request, sort_keys=True), graph, sources_digest()]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    kept, out = CACHE / f"{key}.result.json", CACHE / f"{key}.placement.json.gz"
    if not kept.exists():
        print(f"  … {ask.command}", file=sys.stderr, flush=True)
        kept.write_text(json.dumps(asdict(_run(request, out))))
    stored = json.loads(kept.read_text())
    return Result(**{**stored, "trace": tuple(map(tuple, stored["trace"]))})


def _run(request: dict[str, Any], out: Path) -> Result:
    answer, wall = timed(
        [sys.executable, "-m", "benchmarks.engine.traced"], json.dumps({**request, "out": str(out)})
    )
    found = {"startup_seconds": wall, "engine_seconds": wall, **json.loads(answer)}
    return Result(**found, wall_seconds=wall, file=str(out))


def timed(argv: list[str], text: str = "") -> tuple[str, float]:
    """Runs a command; returns (what it printed, wall seconds). Raises RuntimeError where it
    fails."""
    began = time.monotonic()
    done = subprocess.run(
        argv, input=text, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}")
    return done.stdout, time.monotonic() - began


def sources_digest() -> str:
    """The digest of all sources on which a solve, and its measurement, depends."""
    here = Path(__file__).parent
    files = [*sorted((ROOT / "optimizer").rglob("*.py")), here / "traced.py", here / "measured.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
