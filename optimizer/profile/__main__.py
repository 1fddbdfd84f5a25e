"""`python -m optimizer.profile MODEL --out GRAPH.json`: capture, and measure on this machine."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from optimizer.capture.arguments import add_model_arguments, parse_optimizer
from optimizer.capture.errors import CaptureError
from optimizer.graph import OperatorGraph, save_graph


def main(arguments: list[str] | None = None) -> int:
    """0 done, 3 where the model or an argument is wrong."""
    parser = argparse.ArgumentParser(prog="optimizer.profile", description=__doc__)
    add_model_arguments(parser)
    parser.add_argument(
        "--device-type", default="cpu", help="the name that the times are kept under"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--cache", type=Path, help="folder of measured profiles")
    options = parser.parse_args(arguments)
    if options.threads < 1 or options.samples < 1:
        parser.error("--threads and --samples must be at least 1")
    try:
        graph = profiled_graph(options)
    except CaptureError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    save_graph(graph, Path(options.out))
    return 0


def profiled_graph(options: argparse.Namespace) -> OperatorGraph:
    choice = parse_optimizer(options.optimizer)
    say(f"capture: {options.model}, batch {options.batch}")

    import torch

    from optimizer.capture.step import capture
    from optimizer.profile.cache import ProfileKey, load_profile, save_profile
    from optimizer.profile.measure import measure, processor_model

    captured = capture(options.model, options.batch, choice, options.seed)
    graph = captured.operators
    say(f"capture: {graph.operator_count} operators, {graph.tensor_count} tensors")
    key = ProfileKey(
        structure_hash=graph.structure_hash,
        device_type=options.device_type,
        processor=processor_model(),
        threads=options.threads,
        torch=torch.__version__,
    )
    profile = options.cache and load_profile(options.cache, key, graph)
    if profile:
        say(f"profile: from {key.file(options.cache)}")
    else:
        profile = measure(captured, options.threads, options.samples, say)
        if options.cache:
            save_profile(options.cache, key, graph, profile)
    total, whole = profile.sum_of_medians_seconds, profile.whole_step_seconds
    say(
        f"profile: operators sum to {total * 1e3:.1f} ms, the whole step takes "
        f"{whole * 1e3:.1f} ms ({total / whole - 1:+.1%})"
    )
    notes = {
        **graph.notes,
        "processor": key.processor,
        "threads": key.threads,
        "torch": key.torch,
        "samples": profile.samples,
        "sum_of_medians_seconds": total,
        "whole_step_seconds": whole,
    }
    return replace(graph.with_seconds({options.device_type: profile.seconds}), notes=notes)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
