"""`optimizer trace GRAPH PLACEMENT --out FILE`: writes predicted and measured steps as a trace."""

from __future__ import annotations

import argparse
from pathlib import Path

from placewire.optimizer.commands.arguments import EXIT_CODES, output_file
from placewire.optimizer.commands.outcome import DONE, InputError, ended
from placewire.optimizer.commands.outputs import refuse_overwriting


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description="A placement's predicted step as a trace for ui.perfetto.dev or "
        "chrome://tracing: a process per device, with a row for what it computes and rows for what "
        "each rail sends and receives.",
        epilog=EXIT_CODES,
    )
    made.add_argument("graph", type=Path, help="graph file that the placement is for")
    made.add_argument("placement", type=Path, help="placement file, from solve")
    made.add_argument(
        "--merge",
        type=Path,
        nargs="+",
        default=[],
        metavar="TRACE",
        help="traces that ranks measured (job.trace of a plan); each of their steps is shown "
        "beside the prediction, aligned at the step's barrier",
    )
    made.add_argument("--out", type=output_file, required=True, help="file; gzip if it ends in .gz")
    return made


def main(arguments: list[str], prog: str) -> int:
    made = parser(prog)
    options = made.parse_args(arguments)
    refuse_overwriting(made, options, ["out"])
    return ended(_trace, options)


def _trace(options: argparse.Namespace) -> int:
    from placewire.optimizer.check.check import check
    from placewire.optimizer.graph.graph_file import load_graph
    from placewire.optimizer.graph.json_file import read_json, write_json
    from placewire.optimizer.placement import load_placement
    from placewire.optimizer.trace.document import trace_from_json, trace_to_json
    from placewire.optimizer.trace.merging import merged
    from placewire.optimizer.trace.predicted import predicted_trace

    graph, placement = load_graph(options.graph), load_placement(options.placement)
    if violations := check(graph, placement):
        raise InputError(f"the placement does not hold: {violations[0]}")
    measured = [trace_from_json(read_json(file), where=str(file)) for file in options.merge]
    steps = sorted({step for t in measured for d in t.devices for step in d.step_seconds})
    trace = merged([predicted_trace(graph, placement, steps or [0]), *measured])
    for device in trace.devices:
        used = placement.devices_used
        if device.rank >= len(used) or used[device.rank] != device.device:
            raise InputError(
                f"a trace is of {device.device} as rank {device.rank}, but the placement's devices "
                f"are {', '.join(used)}: give traces of this placement's job"
            )
    write_json(options.out, trace_to_json(trace))
    print(f"written to {options.out}: open it at ui.perfetto.dev, or in chrome://tracing")
    return DONE
