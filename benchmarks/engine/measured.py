"""Timed solves: each in its own process, with its peak memory, kept so that a run can go on.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from placewire.optimizer.cluster import Cluster
from placewire.optimizer.names import Model
from placewire.optimizer.placement import Placement, load_placement

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(
    os.environ.get("PLACEWIRE_BENCH_CACHE", Path.home() / ".cache" / "placewire" / "bench")
)


@dataclass(frozen=True)
class Ask:
    """sharing: one of them, or `auto`. moves instead of a time limit makes a solve repeatable."""

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

    @property
    def command(self) -> str:
        """What a user would type for it, the cluster in a file."""
        limit = (
            f"--moves {self.moves}"
            if self.moves is not None
            else f"--time-limit {self.time_limit:g}"
        )
        return (
            f"optimizer solve {self.graph.name} --cluster CLUSTER --engine {self.engine} --sharing "
            f"{self.sharing} --model {self.model} --reduction {self.reduction} --gap {self.gap:g} "
            f"{limit} --seed {self.seed}"
        )


@dataclass(frozen=True)
class Result:
    """trace: (seconds, incumbent, bound) as they improved, from the engine's start on.
    engine_seconds leaves out what comes before that, startup_seconds: the start of the process,
    its imports and the reading of the graph; wall_seconds has them."""

    refusal: str
    startup_seconds: float
    trace: tuple[tuple[float, float, float], ...]
    engine_seconds: float
    wall_seconds: float
    peak_memory_bytes: int
    considered: Mapping[str, float]
    file: str

    @property
    def placement(self) -> Placement:
        return load_placement(Path(self.file))

    def placement_under(self, sharing: str) -> Placement:
        return load_placement(Path(f"{self.file}.{sharing}.json.gz"))


def solve(ask: Ask) -> Result:
    CACHE.mkdir(parents=True, exist_ok=True)
    request = asdict(ask) | {
        "graph": str(ask.graph),
        "cluster": ask.cluster.model_dump(mode="json"),
    }
    parts = [json.dumps(request, sort_keys=True), _digest(ask.graph), sources_digest()]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]
    kept, out = CACHE / f"{key}.result.json", CACHE / f"{key}.placement.json.gz"
    if not kept.exists():
        print(f"  … {ask.command}", file=sys.stderr, flush=True)
        kept.write_text(json.dumps(asdict(_run(request, out))))
    stored = json.loads(kept.read_text())
    return Result(**{**stored, "trace": tuple(tuple(row) for row in stored["trace"])})


def _run(request: dict[str, Any], out: Path) -> Result:
    answer, wall = timed(
        [sys.executable, "-m", "benchmarks.engine.traced"], json.dumps({**request, "out": str(out)})
    )
    found = json.loads(answer)
    return Result(
        refusal=found.get("refusal", ""),
        startup_seconds=found.get("startup_seconds", wall),
        trace=tuple(found.get("trace", ())),
        engine_seconds=found.get("engine_seconds", wall),
        wall_seconds=wall,
        peak_memory_bytes=found["peak_memory_bytes"],
        considered=found.get("considered", {}),
        file=str(out),
    )


def timed(argv: list[str], text: str = "") -> tuple[str, float]:
    """(what it printed, wall seconds). Raises RuntimeError where it fails."""
    began = time.monotonic()
    done = subprocess.run(
        argv, input=text, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}")
    return done.stdout, time.monotonic() - began


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sources_digest() -> str:
    """Of everything that a solve, and how it is measured, depends on."""
    here = Path(__file__).parent
    files = [*sorted((ROOT / "optimizer").rglob("*.py")), here / "traced.py", here / "measured.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
