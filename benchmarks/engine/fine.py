"""Item 11: the search on steps of core operators, with the updates written out, beside the same
steps as captured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.engine.measured import CACHE, Ask, solve, sources_digest
from benchmarks.engine.parallelisms import optimizer
from benchmarks.engine.setting import DEVICE, cluster
from benchmarks.graphs import CAPTURED
from benchmarks.table import Table, milliseconds

MODELS = ("alexnet", "vgg16")
# A budget of moves gives the same placement on every machine, however busy it is.
MOVES = 300_000
# Under `thesis` all that any operator makes counts as held.
MEMORY_BYTES = 32 * 2**30


def tables(_: Path | None) -> Iterator[Table]:
    yield Table(
        title="11. Fine graphs by moves: decomposed, thesis, strict, 4 servers x 3 NICs, "
        f"{MOVES:,} moves",
        columns=("graph (operators), Gbit/s", "one ms", "step ms", "bound ms", "gap"),
        rows=[
            _row(name, gigabits, fine=fine)
            for name in MODELS
            for gigabits in (20.0, 160.0)
            for fine in (False, True)
        ],
        notes=(
            "Devices of 32 GiB. A budget of moves gives the same placement on every machine. It "
            "proves no stronger bound, so that the gap is that of the quick one.",
        ),
    )


def _row(name: str, gigabits: float, *, fine: bool) -> list[str]:
    on = cluster(gigabits, memory_bytes=MEMORY_BYTES)
    ask = Ask(graph_file(name, fine=fine), on, "auto", "strict", model="thesis", moves=MOVES)
    found = solve(ask).placement
    kind = "decomposed" if fine else "captured"
    return [
        f"{name} {kind} ({len(found.operators)}), {gigabits:g}",
        milliseconds(found.single_device_seconds or float("nan")),
        milliseconds(found.step_seconds), milliseconds(found.bound_seconds), f"{found.gap:.1%}",
    ]  # fmt: skip


def graph_file(name: str, *, fine: bool) -> Path:
    """The step of that name in CAPTURED, with modelled times."""
    kind = "decomposed" if fine else "captured"
    file = CACHE / f"{name}-{kind}.{DEVICE}.{sources_digest()[:12]}.json.gz"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        model, batch = CAPTURED[name]
        optimizer(
            "profile", model, "--batch", str(batch), "--device", DEVICE, "--out", str(file),
            *(["--decompose"] if fine else []),
        )  # fmt: skip
    return file
