"""`python -m optimizer.profile MODEL --out GRAPH.json`: capture, and measure on this machine."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from optimizer.arguments import EXIT_CODES, positive
from optimizer.capture.arguments import add_model_arguments, parse_optimizer
from optimizer.capture.errors import CaptureError
from optimizer.graph import OperatorGraph, save_graph


def main(arguments: list[str] | None = None, prog: str = "python -m optimizer.profile") -> int:
    """0 done, 3 where the model or an argument is wrong. prog: what it was called as."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="A PyTorch training step as an operator graph, measured on this machine.",
        epilog=EXIT_CODES,
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--device-type",
        default="cpu",
        help="the name that the times are kept under, as in the cluster file; default: cpu",
    )
    parser.add_argument(
        "--threads", type=positive, default=1, help="threads of each operator; default: 1"
    )
    parser.add_argument(
        "--samples", type=positive, default=9, help="steps measured; the median counts; default: 9"
    )
    parser.add_argument("--cache", type=Path, help="folder of measured profiles")
    options = parser.parse_args(arguments)
    try:
        save_graph(profiled_graph(options), Path(options.out))
    except CaptureError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 3
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
