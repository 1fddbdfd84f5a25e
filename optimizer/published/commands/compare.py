"""`optimizer compare GRAPH …`: compares placement methods on graphs and clusters, or with --preset
a published table or figure with ours."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from placewire.optimizer.commands.answers import answered
from placewire.optimizer.commands.arguments import EXIT_CODES, fraction, seconds, whole
from placewire.optimizer.commands.clusters import (
    add_equal_servers,
    equal_servers,
    read_cluster,
    refuse_half_a_cluster,
)
from placewire.optimizer.commands.outcome import DONE, InputError, ended
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.names import Model
from placewire.optimizer.published.comparison.presets import PRESETS
from placewire.optimizer.published.formulations.solver import SolverName
from placewire.optimizer.published.formulations.topological_sort import SortName
from placewire.optimizer.reductions.reduction import REDUCTIONS

if TYPE_CHECKING:
    from placewire.optimizer.published.comparison.cases import (
        Case,
        ComparedCluster,
        ComparedGraph,
        Method,
    )
    from placewire.optimizer.published.comparison.rows import Row

_LIMIT_SECONDS = 30.0
# The options that a preset decides itself.
_OF_A_PRESET = (
    "graphs", "cluster", "servers", "nics", "rate", "device_memory", "device_type",
    "setup_latency", "engines", "reductions", "models", "seeds", "gap", "solver", "sort",
)  # fmt: skip


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="Compares placement methods: places every graph on every cluster with every "
        "engine, reduction, cost model and seed that is named, and prints one table, with steps "
        "simulated under contended, strict. An interrupted comparison goes on where it ended.",
        epilog=EXIT_CODES,
    )
    made.add_argument("graphs", type=Path, nargs="*", metavar="GRAPH", help="graph files")
    made.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="for rows.jsonl (cases that it has are not solved again), table.csv, steps.png, "
        "search.png, and placements/",
    )
    made.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        metavar="NAME",
        help="instead of graphs, clusters and methods: a published table or figure; the paper's "
        f"figures stand beside ours of the same models; one of {', '.join(PRESETS)}",
    )
    made.add_argument(
        "--cluster",
        type=Path,
        nargs="+",
        help="plan.yaml or .yaml with a `cluster`, or JSON: a cluster file or a placement",
    )
    add_equal_servers(made)
    made.add_argument(
        "--engines",
        nargs="+",
        choices=("all", *ENGINES.names),
        metavar="ENGINE",
        help="default: all that `optimizer engines` lists",
    )
    made.add_argument(
        "--reductions",
        nargs="+",
        choices=("all", *REDUCTIONS.names),
        metavar="REDUCTION",
        help="default: auto, the reduction of each engine's paper, or by size; all: all that "
        "`optimizer reductions` lists",
    )
    made.add_argument(
        "--models",
        nargs="+",
        choices=get_args(Model),
        help="cost models under which methods decide; default: contended",
    )
    made.add_argument(
        "--seeds", nargs="+", type=whole, metavar="SEED", help="of searches; default: 0"
    )
    made.add_argument(
        "--gap", type=fraction, help="a search may stop when this near to its bound; default: 0%%"
    )
    made.add_argument(
        "--time-limit",
        type=seconds,
        help=f"of each solve; default: {_LIMIT_SECONDS:g} (seconds). With --preset: shortens "
        "solves with a longer limit, for a quick look; the answer says so",
    )
    made.add_argument(
        "--paper-times",
        action="store_true",
        help="with --preset: a solve may take as long as the paper says that its own took, where "
        "that is longer than what the preset gives; --time-limit shortens it again",
    )
    made.add_argument(
        "--solver",
        choices=get_args(SolverName),
        help="of the published formulations; default: auto, cp-sat for moirai and highs for the "
        "others",
    )
    made.add_argument(
        "--sort",
        choices=get_args(SortName),
        help="of the published formulations with a fixed order: recorded, the graph's own, by "
        "Kahn's algorithm; or depth-first, which --models thesis refuses; default: auto, as "
        "`optimizer solve` has it",
    )
    made.add_argument("--json", action="store_true", help="the rows as JSON, not as text")
    return made


def main(arguments: list[str], prog: str) -> int:
    made = parser(prog)
    options = made.parse_args(arguments)
    if options.preset is None:
        if options.paper_times:
            made.error("--paper-times is about the solves of a paper: give a --preset")
        if not options.graphs:
            made.error("give GRAPH files, or a --preset")
        refuse_half_a_cluster(made, options)
        return ended(_compare, options)
    for name in _OF_A_PRESET:
        if getattr(options, name) not in (None, []):
            flag = "GRAPH" if name == "graphs" else "--" + name.replace("_", "-")
            made.error(f"--preset decides what is compared; leave {flag} out")
    return ended(_reproduce, options)


def _compare(options: argparse.Namespace) -> int:
    from placewire.optimizer.published.comparison.rows import RowsFile
    from placewire.optimizer.published.comparison.running import compare
    from placewire.optimizer.published.comparison.tables import csv_text, figures, table_lines

    cases = list(_cases(options))
    with RowsFile(options.out / "rows.jsonl") as file:
        found = compare(cases, file, _say)
    written = _write(options.out, csv_text(found), found)
    if options.json:
        print(answered({"rows": figures(found)}))
    else:
        print("\n".join([*table_lines(found), "", written]))
    return DONE


def _reproduce(options: argparse.Namespace) -> int:
    from placewire.optimizer.published.comparison.beside_text import beside_csv, beside_lines
    from placewire.optimizer.published.comparison.presets import load_preset
    from placewire.optimizer.published.comparison.presets.preset import at_papers_times, shortened
    from placewire.optimizer.published.comparison.reproducing import reproduce

    preset = load_preset(options.preset)
    if preset.refusal:
        raise InputError(f"{options.preset}: {preset.refusal}")
    if options.paper_times:
        preset = at_papers_times(preset)
    if options.time_limit is not None:
        preset = shortened(preset, options.time_limit)
    options.out.mkdir(parents=True, exist_ok=True)
    found, rows = reproduce(preset, options.out, _say)
    written = _write(options.out, beside_csv(found), rows)
    if options.json:
        names = ("model", "what", "paper", "ours", "why")
        figures = [{name: getattr(one, name) for name in names} for one in found]
        differs = list(preset.differs)
        print(answered({"title": preset.title, "figures": figures, "differs": differs}))
    else:
        print("\n".join([*beside_lines(preset, found), "", written]))
    return DONE


def _write(folder: Path, table: str, rows: list[Row]) -> str:
    """Writes the table, as text, and the pictures; returns a line that names all files."""
    from placewire.optimizer.published.comparison.plots import draw

    (folder / "table.csv").write_text(table)
    drawn = [file.name for file in draw(rows, folder)]
    return f"written to {folder}: {', '.join(['rows.jsonl', 'table.csv', *drawn])}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cases(options: argparse.Namespace) -> list[Case]:
    """Every graph on every cluster with every method. Raises OSError, ValueError."""
    from placewire.optimizer.published.comparison.cases import crossed, read_graph

    graphs = [read_graph(file) for file in options.graphs]
    _refuse_twins("graphs", [graph.name for graph in graphs])
    methods = _methods(options)
    return [
        case for graph in graphs for case in crossed([graph], _clusters(options, graph), methods)
    ]


def _clusters(options: argparse.Namespace, graph: ComparedGraph) -> list[ComparedCluster]:
    """The clusters of the files, called after them; or the equal servers, whose device type may be
    the graph's."""
    from placewire.optimizer.graph.graph_file import load_graph
    from placewire.optimizer.published.comparison.cases import ComparedCluster
    from placewire.optimizer.quantities import format_bits_per_second

    if options.cluster is None:
        rate = format_bits_per_second(options.rate)
        name = f"{options.servers} servers x {options.nics} NICs x {rate}"
        servers = equal_servers(options, load_graph(graph.file), str(graph.file))
        return [ComparedCluster(name, servers)]
    clusters = [ComparedCluster(file.stem, read_cluster(file)) for file in options.cluster]
    _refuse_twins("clusters", [one.name for one in clusters])
    return clusters


def _refuse_twins(what: str, names: list[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two {what} are called {twice[0]!r}; rename one of the files")


def _methods(options: argparse.Namespace) -> list[Method]:
    from placewire.optimizer.published.comparison.cases import Method

    engines, reductions = options.engines or ["all"], options.reductions or ["auto"]
    limit = options.time_limit or _LIMIT_SECONDS
    return [
        Method(
            engine,
            reduction,
            model,
            seed,
            options.gap or 0.0,
            limit,
            options.solver or "auto",
            options.sort or "auto",
        )
        for model in options.models or ["contended"]
        for engine in (ENGINES.names if "all" in engines else engines)
        for reduction in (REDUCTIONS.names if "all" in reductions else reductions)
        for seed in options.seeds or [0]
    ]
