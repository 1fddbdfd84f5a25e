"""Item 5: which sharing wins where a step is cut as suits it, quiet and beside a neighbour."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.engine.measured import CACHE, sources_digest
from benchmarks.engine.parallelisms import optimizer, variant_files
from benchmarks.engine.setting import cluster
from benchmarks.table import Table
from placewire.optimizer.cluster import ASSUMED_MESSAGE_TIME
from placewire.optimizer.explain.summary import timeline_of
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import Placement, load_placement

GRAPHS = ("vgg16 512", "resnet50 128", "bert 64")
GIGABITS = (10.0, 20.0, 100.0)
SERVERS, NICS = 4, 3
NEIGHBOURS = (("quiet", 0.0), ("greedy", 1.0))
SECONDS = 60.0
SHARINGS: tuple[SharingName, ...] = ("job", "guarantee", "strict", "even", "unshaped")
HEADINGS = (*SHARINGS, "one NIC", "one device")


def tables(_: Path | None) -> Iterator[Table]:
    rows, shares, ratios = [], [], []
    for name, gigabits, (neighbour, wanted) in itertools.product(GRAPHS, GIGABITS, NEIGHBOURS):
        found = [_found(name, gigabits, wanted, NICS, sharing) for sharing in SHARINGS]
        alone = _found(name, gigabits, wanted, 1, "unshaped")
        single = min(v.single_device_seconds or np.inf for v in found[0].variants)
        steps = [*(placement.step_seconds for placement in (*found, alone)), single]
        best, row = min(steps), f"{name}, {gigabits:g}, {neighbour}"
        ratios.append([step / best for step in steps])
        how = next(v.name for v in found[0].variants if v.structure_hash == found[0].structure_hash)
        rows.append([row, f"{best * 1e3:.4g}", *(f"{step / best:.3f}" for step in steps), how])
        if wanted:
            parts = [neighbour_share(_graph(name, placement), placement) for placement in found]
            shares.append([row, *(f"{part:.0%}" for part in parts)])
    wins = (np.array(ratios) <= 1.01).sum(axis=0).tolist()
    worst = np.max(ratios, axis=0).tolist()
    said = [f"{h} {w} (worst {x:.2f})" for h, w, x in zip(HEADINGS, wins, worst, strict=True)]
    yield Table(
        title=f"5. Which sharing wins: {SERVERS} servers, {NICS} NICs each",
        columns=("graph batch, Gbit/s, neighbour", "best ms", *HEADINGS, "cut into"),
        rows=rows,
        notes=(
            f"Step over the best of the row; contended, seed 0, {SECONDS:g} s for five sharings "
            "together, which have the same variant, each its own placement. Best or within 1 % of "
            f"it, in {len(rows)} rows: {', '.join(said)}.",
        ),
    )
    yield Table(
        title="5. What the neighbour on the first server got of what it wanted",
        columns=("graph batch, Gbit/s, neighbour", *SHARINGS),
        rows=shares,
        notes=("Both directions, averaged over the step, on the NICs that the job uses.",),
    )


def _found(name: str, gigabits: float, wanted: float, nics: int, sharing: SharingName) -> Placement:
    """One search finds those of all sharings on three NICs, another one the best on one NIC."""
    mark = f"{name.replace(' ', '_')}-{gigabits:g}-{wanted:g}-{nics}.{sources_digest()[:12]}"
    folder = CACHE / f"sharings-{mark}"
    file = folder / f"{sharing}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        takes = {"message_seconds": ASSUMED_MESSAGE_TIME["cuda"].seconds}
        where = cluster(gigabits, servers=SERVERS, nics=nics, background=wanted)
        on = folder / "cluster.json"
        on.write_text(where.model_copy(update=takes).model_dump_json())
        print(f"  … {mark}", file=sys.stderr, flush=True)
        several = nics == NICS
        optimizer(
            "solve", *map(str, variant_files(name, SERVERS)), "--cluster", str(on),
            "--sharing", "auto" if several else sharing, "--gap", "0",
            "--time-limit", f"{SECONDS if several else SECONDS / len(SHARINGS):g}",
            *(("--out-each", str(folder)) if several else ("--out", str(file))),
        )  # fmt: skip
    return load_placement(file)


def _graph(name: str, placement: Placement) -> OperatorGraph:
    graphs = map(load_graph, variant_files(name, SERVERS))
    return next(graph for graph in graphs if graph.structure_hash == placement.structure_hash)


def neighbour_share(graph: OperatorGraph, placement: Placement) -> float:
    """The part that the neighbour carried of what it wanted in the step, in both directions."""
    _, timeline = timeline_of(graph, placement)
    wanted = 2 * placement.cluster.background.sum() * timeline.step_seconds
    return float(timeline.background_bits.sum() / wanted)
