"""Item 5: which sharing wins where a step is cut as suits it, quiet and beside a neighbour."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.engine.elsewhere import Setting, best_of_all
from benchmarks.engine.measured import CACHE, sources_digest
from benchmarks.engine.parallelisms import optimizer, variant_files
from benchmarks.engine.setting import cluster
from benchmarks.table import Table
from placewire.optimizer.cluster import ASSUMED_MESSAGE_TIME, Cluster
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


class Cell(NamedTuple):
    """A cell of the table. wanted: by the neighbour, as a part of its NICs."""

    gigabits: float
    wanted: float
    nics: int
    sharing: SharingName

    @property
    def cluster(self) -> Cluster:
        takes = {"message_seconds": ASSUMED_MESSAGE_TIME["cuda"].seconds}
        where = cluster(self.gigabits, servers=SERVERS, nics=self.nics, background=self.wanted)
        return where.model_copy(update=takes)


def tables(_: Path | None) -> Iterator[Table]:
    rows, shares, ratios, longer = [], [], [], []
    for name in GRAPHS:
        graphs = [load_graph(file) for file in variant_files(name, SERVERS)]
        found = {
            cell: _found(name, cell)
            for gigabits, (_neighbour, wanted) in itertools.product(GIGABITS, NEIGHBOURS)
            for cell in _cells(gigabits, wanted)
        }
        print(f"  … {name}: each placement in each setting", file=sys.stderr, flush=True)
        best = best_of_all(
            graphs, found, {cell: Setting(cell.cluster, cell.sharing) for cell in found},
            CACHE / "elsewhere",
        )  # fmt: skip
        longer += [found[cell].step_seconds / best[cell].step_seconds - 1 for cell in found]
        of_structure = {graph.structure_hash: graph for graph in graphs}
        for gigabits, (neighbour, wanted) in itertools.product(GIGABITS, NEIGHBOURS):
            told = f"{name}, {gigabits:g}, {neighbour}"
            row, ratio = _row(told, [best[cell] for cell in _cells(gigabits, wanted)], found)
            rows.append(row)
            ratios.append(ratio)
            if wanted:
                placed = [best[cell] for cell in _cells(gigabits, wanted) if cell.nics == NICS]
                parts = [neighbour_share(of_structure[p.structure_hash], p) for p in placed]
                shares.append([told, *(f"{part:.0%}" for part in parts)])
    wins = (np.array(ratios) <= 1.01).sum(axis=0).tolist()
    worst = np.max(ratios, axis=0).tolist()
    said = [f"{h} {w} (worst {x:.2f})" for h, w, x in zip(HEADINGS, wins, worst, strict=True)]
    helped = [part for part in longer if part > 1e-6]
    yield Table(
        title=f"5. Which sharing wins: {SERVERS} servers, {NICS} NICs each",
        columns=("graph batch, Gbit/s, neighbour", "best ms", *HEADINGS, "cut into"),
        rows=rows,
        notes=(
            f"Step over the best of the row; contended, seed 0, {SECONDS:g} s for five sharings "
            "together, which have the same variant. Then each placement of a graph was simulated "
            "in each setting of the same graph, and the shortest counts. Best or within 1 % of "
            f"it, in {len(rows)} rows: {', '.join(said)}. Cut into: the best of the row.",
            f"Noise of the searches: in {len(helped)} of {len(longer)} settings a placement from "
            f"another one was shorter; the search's own was {_noise(helped)}. "
            "Other seeds and longer searches were not tried.",
        ),
    )
    yield Table(
        title="5. What the neighbour on the first server got of what it wanted",
        columns=("graph batch, Gbit/s, neighbour", *SHARINGS),
        rows=shares,
        notes=("Both directions, averaged over the step, on the NICs that the job uses.",),
    )


def _cells(gigabits: float, wanted: float) -> list[Cell]:
    several = [Cell(gigabits, wanted, NICS, sharing) for sharing in SHARINGS]
    return [*several, Cell(gigabits, wanted, 1, "unshaped")]


def _row(
    told: str, placed: list[Placement], found: Mapping[Cell, Placement]
) -> tuple[list[str], list[float]]:
    """(the row, each step over its best). placed: under each sharing, then on one NIC."""
    variants = {v.structure_hash: v for one in found.values() for v in one.variants}
    single = min(v.single_device_seconds or np.inf for v in variants.values())
    steps = [*(placement.step_seconds for placement in placed), single]
    least = min(steps)
    ratios = [step / least for step in steps]
    how = variants[min(placed, key=lambda one: one.step_seconds).structure_hash].name
    return [told, f"{least * 1e3:.4g}", *(f"{ratio:.3f}" for ratio in ratios), how], ratios


def _noise(longer: list[float]) -> str:
    if not longer:
        return "never longer"
    return f"longer by {median(longer):.1%} in the median and by at most {max(longer):.1%}"


def _found(name: str, cell: Cell) -> Placement:
    """One search finds those of all sharings on three NICs, another one the best on one NIC."""
    gigabits, wanted, nics, sharing = cell
    mark = f"{name.replace(' ', '_')}-{gigabits:g}-{wanted:g}-{nics}.{sources_digest()[:12]}"
    folder = CACHE / f"sharings-{mark}"
    file = folder / f"{sharing}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        on = folder / "cluster.json"
        on.write_text(cell.cluster.model_dump_json())
        print(f"  … {mark}", file=sys.stderr, flush=True)
        several = nics == NICS
        optimizer(
            "solve", *map(str, variant_files(name, SERVERS)), "--cluster", str(on),
            "--sharing", "auto" if several else sharing, "--gap", "0",
            "--time-limit", f"{SECONDS if several else SECONDS / len(SHARINGS):g}",
            *(("--out-each", str(folder)) if several else ("--out", str(file))),
        )  # fmt: skip
    return load_placement(file)


def neighbour_share(graph: OperatorGraph, placement: Placement) -> float:
    """The part that the neighbour carried of what it wanted in the step, in both directions."""
    _, timeline = timeline_of(graph, placement)
    wanted = 2 * placement.cluster.background.sum() * timeline.step_seconds
    return float(timeline.background_bits.sum() / wanted)
