"""`controller evaluate MODEL`: profiles a step that no device can hold, by Standard Evaluation."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from placewire.controller.commands.arguments import require_writable
from placewire.controller.commands.interrupts import interruptible
from placewire.optimizer.commands.arguments import byte_count, positive
from placewire.optimizer.commands.model_arguments import add_model_arguments
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.profile.recorded import TIMED_STEPS
from placewire.visible import visible

PURPOSE = "profile a step that no device can hold, on several devices of this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, several=False)
    parser.add_argument(
        "--small-batches", type=positive, nargs="+", required=True, metavar="N",
        help="two or more batch sizes that one device can hold; their memory is extrapolated",
    )  # fmt: skip
    parser.add_argument("--devices", type=positive, required=True, help="how many to use here")
    parser.add_argument(
        "--device-memory", type=byte_count, required=True,
        help="memory of each device for tensors, like 16GiB",
    )  # fmt: skip
    parser.add_argument(
        "--device-type", default="cpu", help="the name that the times are kept under; default: cpu"
    )
    parser.add_argument(
        "--placer", choices=ENGINES.names, default="sequential", metavar="ENGINE",
        help="the engine that places the estimated step, on which it is measured; default: "
        "sequential, which fills one device after the other; `optimizer engines` lists all of them",
    )  # fmt: skip
    parser.add_argument("--threads", type=positive, default=1, help="threads a rank; default: 1")
    parser.add_argument(
        "--samples", type=positive, default=TIMED_STEPS,
        help=f"recorded steps of each batch size; default: {TIMED_STEPS}",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    return interruptible(_evaluate(arguments))


async def _evaluate(arguments: argparse.Namespace) -> int:
    from placewire.controller.decide.measured.standard_evaluation import Evaluation, evaluate
    from placewire.optimizer.graph.graph_file import load_graph, save_graph

    out = Path(arguments.out)
    require_writable(out)
    asked = Evaluation(
        model=arguments.model,
        batch=arguments.batch,
        small_batches=tuple(arguments.small_batches),
        devices=arguments.devices,
        memory_bytes=arguments.device_memory,
        device_type=arguments.device_type,
        threads=arguments.threads,
        samples=arguments.samples,
        placer=arguments.placer,
        optimizer=arguments.optimizer,
        accumulate=arguments.accumulate,
        shards=arguments.shards,
        recompute=arguments.recompute,
        autocast=arguments.autocast,
        seed=arguments.seed,
        bucket=arguments.bucket,
    )
    with tempfile.TemporaryDirectory(prefix="placewire-evaluation-") as folder:
        measured = await evaluate(
            asked, Path(folder), lambda line: print(visible(line), file=sys.stderr, flush=True)
        )
        save_graph(load_graph(measured), out)
    return 0
