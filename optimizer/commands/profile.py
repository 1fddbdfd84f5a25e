"""`optimizer profile`: adds operator times to a graph, measured here, modelled, or from traces."""

from __future__ import annotations

import argparse
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.optimizer.capture.allocator import prepare_allocator
from placewire.optimizer.commands.arguments import EXIT_CODES, positive, seconds
from placewire.optimizer.commands.model_arguments import (
    AUTO,
    add_model_arguments,
    add_research_arguments,
    bucket_of,
    capture_options,
    each_admitted,
    each_cut,
)
from placewire.optimizer.commands.outcome import DONE, ended, say
from placewire.optimizer.commands.outputs import refuse_overwriting
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph
from placewire.optimizer.graph.variants import cut_name
from placewire.optimizer.names import runs_on
from placewire.optimizer.profile import sampling
from placewire.optimizer.profile.devices import DEVICES
from placewire.optimizer.profile.exchange import exchange, own_output
from placewire.optimizer.profile.process_memory import beside_tensors_bytes, peak_on_one_device

if TYPE_CHECKING:
    from placewire.optimizer.profile.cache import ProfileKey
    from placewire.optimizer.profile.measure import Profile

# Notes about the whole step at the batch that was measured.
_OF_ITS_BATCH = ("sum_of_medians_seconds", "whole_step_seconds", "calibration")
_DESCRIPTION = """\
Times for an operator graph, in one of five ways.
  MODEL (module:function) --batch N --out FILE     capture it, and measure it on this machine
  MODEL --batch N --device NAME … --out FILE       capture it, and model its times
  MODEL --batch N --small-batches … --out FILE     estimate times from steps of smaller batches
  GRAPH (a graph file) --device NAME --out FILE    model times from FLOPs, bytes, launch latency
  GRAPH --recorded TRACE … --out FILE              take the times that ranks recorded
"""


def main(arguments: list[str] | None = None, prog: str = "optimizer profile") -> int:
    """Returns the exit code: 0 done, 3 where the model, the graph or an argument is wrong."""
    made = parser(prog)
    options = made.parse_args(arguments)
    _refuse_mixed(made, options)
    refuse_overwriting(made, options, ["out"])  # A graph (`model`) may get its times in its place.
    return ended(_profile, options)


def _profile(options: argparse.Namespace) -> int:
    if options.exchange:
        (one,) = each_cut(options)
        exchange(0, own_output(), lambda folder: profiled_graph(_with(one, cache=folder)))
        return DONE
    if _is_graph_file(options):
        (options,) = each_cut(options)
        _saved_graph(options)
    else:
        each_admitted(options, _saved_graph)
    return DONE


def _saved_graph(options: argparse.Namespace) -> OperatorGraph:
    graph = _graph(options)
    if options.out is not None:
        save_graph(graph, options.out)
    return graph


def _graph(options: argparse.Namespace) -> OperatorGraph:
    if options.recorded:
        return recorded_graph(options)
    if _is_graph_file(options):
        return modelled_graph(load_graph(Path(options.model)), options)
    if options.device:
        return modelled_graph(_captured(options), options)
    return rough_graph(options) if options.small_batches else profiled_graph(options)


def _captured(options: argparse.Namespace) -> OperatorGraph:
    """Without times, and without memory for the model's values."""
    from placewire.optimizer.capture.partial_values import capture_part

    cut = cut_name(options.accumulate, options.shards, options.recompute)
    say(f"capture: {options.model}, batch {options.batch}, {cut}")
    captured = capture_part(capture_options(options), wanted=(), others=False).step
    return bucket_of(captured, options).operators


def _with(options: argparse.Namespace, **changed: object) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(options), **changed})


def _is_graph_file(options: argparse.Namespace) -> bool:
    return Path(options.model).is_file()


def parser(prog: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=prog,
        description=_DESCRIPTION,
        epilog=textwrap.fill(EXIT_CODES, 78),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_model_arguments(
        made,
        what="model to measure, like placewire.examples.models.mlp:training_step, or a graph file",
        complete=False,
    )
    add_research_arguments(made)
    kept = made.add_mutually_exclusive_group()
    kept.add_argument("--cache", type=Path, help="folder of measured profiles")
    kept.add_argument(
        "--exchange",
        action="store_true",
        help="instead of --out, for use by another machine: reads known profiles as JSON from "
        "standard input, writes the graph and the new profiles as JSON to standard output",
    )
    measured = made.add_argument_group("for a model, measured")
    measured.add_argument(
        "--device-type",
        default="cpu",
        help="device type that the times are for, as in the cluster file; cpu and cpu:NAME are "
        "measured on the processor, others on the CUDA device; default: cpu",
    )
    measured.add_argument(
        "--threads", type=positive, default=1, help="threads of each operator; default: 1"
    )
    measured.add_argument(
        "--samples",
        type=positive,
        default=sampling.MOST_SAMPLES,
        help=f"most steps to measure; the median counts; default: {sampling.MOST_SAMPLES}",
    )
    measured.add_argument(
        "--seconds",
        type=seconds,
        default=sampling.LIMIT_SECONDS,
        help=f"after this time {sampling.ENOUGH_SAMPLES} steps suffice, after three times as long "
        f"{sampling.LEAST_SAMPLES}; default: {sampling.LIMIT_SECONDS:g}",
    )
    measured.add_argument(
        "--no-calibrate",
        dest="calibrate",
        action="store_false",
        help="keep the operators' medians, whose sum differs from the time of the whole step",
    )
    measured.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="note which part of the batches of so many steps each bucket has, counted over at "
        f"most {sampling.MOST_COUNTED_STEPS} of them",
    )
    measured.add_argument(
        "--small-batches",
        type=positive,
        nargs="+",
        metavar="N",
        help="measure steps of these batches, and estimate the step of --batch by a line through "
        "each operator's memory and time: for a step that no device here can hold",
    )
    modelled = made.add_argument_group("for a graph file or a model, modelled")
    modelled.add_argument(
        "--device",
        action="append",
        choices=DEVICES,
        help="add the times of this device, under its name; may be given several times",
    )
    modelled.add_argument(
        "--against",
        metavar="TYPE",
        help="print how far modelled times are from those that the graph has for this device type",
    )
    recorded = made.add_argument_group("for a graph file, recorded")
    recorded.add_argument(
        "--recorded",
        type=Path,
        nargs="+",
        metavar="TRACE",
        help="traces of all ranks that ran this graph, with workspace, as `controller evaluate` "
        "makes them; prints how far the graph's own times and workspace were off",
    )
    return made


def _refuse_mixed(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with code 2 where options do not go together, or some are missing."""
    from_graph = _is_graph_file(options)
    several = len(options.accumulate) * len(options.shards) > 1 or AUTO in options.accumulate
    if options.exchange and (
        from_graph or options.out is not None or options.small_batches or several or options.device
    ):
        parser.error(
            "--exchange measures a model once and answers on standard output: drop --out, --device "
            "and --small-batches, and give one number of micro-batches and of shards"
        )
    cut = options.accumulate, options.shards, options.recompute
    research = options.decompose or options.inference
    if from_graph and (cut != ([1], [1], "none") or research):
        parser.error(
            f"{options.model} is a graph file, which is cut already: drop --accumulate, --shards, "
            "--recompute, --decompose and --inference"
        )
    if options.recorded and (not from_graph or options.device or options.out is None):
        parser.error("--recorded is for a graph file, without --device, and needs --out")
    if from_graph:
        if options.batch is not None:
            parser.error(f"{options.model} is a graph file, whose batch is fixed: drop --batch")
        if options.recorded:
            return
        if not options.device:
            parser.error(f"{options.model} is a graph file: say which --device to model")
        if options.out is None and options.against is None:
            parser.error("give --out, or --against to compare only")
        return
    if options.against:
        parser.error(
            f"--against needs a graph file, and {options.model} is none: check the path, or "
            "capture the model first"
        )
    if options.device and options.small_batches:
        parser.error("--device models the times that --small-batches measures: give one of them")
    needed = ("batch",) if options.exchange else ("batch", "out")
    missing = [f"--{key}" for key in needed if getattr(options, key) is None]
    if missing:
        how = "model" if options.device else "measure"
        parser.error(f"to {how} the times of {options.model} give {', '.join(missing)}")


def modelled_graph(graph: OperatorGraph, options: argparse.Namespace) -> OperatorGraph:
    """Prints how far modelled times are off, with --against. Raises GraphError naming the file."""
    from placewire.optimizer.profile.modelled import error_lines, with_modelled_seconds

    try:
        result = with_modelled_seconds(graph, options.device)
        if options.against is not None:
            print("\n".join(error_lines(graph, options.device, options.against)))
    except ValueError as error:
        raise GraphError(f"{options.model}: {error}") from error
    for name in options.device:
        column = result.seconds[:, result.device_types.index(name)]
        say(f"profile: {name} takes {column.sum() * 1e3:.3f} ms for all operators, modelled")
    return result


def recorded_graph(options: argparse.Namespace) -> OperatorGraph:
    """Prints how far the graph was off. Raises GraphError or TraceError naming the file."""
    from placewire.optimizer.graph.json_file import read_json
    from placewire.optimizer.profile.recorded import deviation_lines, with_recorded
    from placewire.optimizer.trace.document import trace_from_json

    graph = load_graph(Path(options.model))
    traces = [trace_from_json(read_json(file), where=str(file)) for file in options.recorded]
    try:
        measured = with_recorded(graph, traces)
    except GraphError as error:
        raise GraphError(f"{options.model}: {error}") from error
    say("\n".join(deviation_lines(graph, measured)))
    return measured


def rough_graph(options: argparse.Namespace) -> OperatorGraph:
    """Never holds more in memory than a step of the largest small batch. Raises GraphError."""
    from placewire.optimizer.profile.rough import roughly

    batches = dict.fromkeys(options.small_batches)
    small = {batch: profiled_graph(_with(options, batch=batch)) for batch in batches}

    from placewire.optimizer.capture.partial_values import capture_part

    say(f"capture: {options.model}, batch {options.batch}, without its values")
    asked = capture_options(options, runs_on(options.device_type))
    captured = capture_part(asked, wanted=(), others=False).step
    graph = roughly(small, bucket_of(captured, options).operators, options.batch)
    # Of the notes of a small batch those about its whole step do not hold for this one.
    of_small = next(iter(small.values())).notes
    notes = {**{key: of_small[key] for key in of_small if key not in _OF_ITS_BATCH}, **graph.notes}
    notes |= {"one_device_bytes": peak_on_one_device(graph)}
    say(f"profile: {graph.seconds.sum() * 1e3:.1f} ms for all operators, estimated")
    return replace(graph, notes=notes)


def profiled_graph(options: argparse.Namespace) -> OperatorGraph:
    prepare_allocator()
    device_type = runs_on(options.device_type)
    asked = capture_options(options, device_type)
    bucket = f", bucket {options.bucket}" if options.bucket else ""
    say(f"capture: {options.model}, batch {options.batch}{bucket}")

    import torch

    from placewire.optimizer.capture.buckets import of_bucket, require_same_state, shares_of
    from placewire.optimizer.capture.step import built_step, captured_from
    from placewire.optimizer.capture.whole_batch import what_the_loss_needs
    from placewire.optimizer.profile.cache import ProfileKey, load_profile, save_profile
    from placewire.optimizer.profile.measure import measure
    from placewire.optimizer.profile.processor import processor_model
    from placewire.optimizer.profile.throttling import telling_of_throttling

    built = built_step(asked)
    step = of_bucket(built, options.bucket, options.model)
    captured = captured_from(step, asked)
    if options.bucket is not None:  # What it trains must be told before anything is changed.
        first = captured_from(of_bucket(built, None, options.model), asked)
        require_same_state(first, captured, options.model)
    if captured.validation is not None:
        captured.validation.batches(0)  # A wrong one is told before anything is changed.
    graph = captured.operators
    notes = {**graph.notes}
    if not options.inference:  # which has no loss
        notes["whole_batch"] = notes["whole_batch"] or what_the_loss_needs(step, options.batch)
    if options.steps is not None:
        notes["bucket_shares"] = shares_of(built, options.steps, sampling.MOST_COUNTED_STEPS)
    graph = replace(graph, notes=notes)
    say(f"capture: {graph.operator_count} operators, {graph.tensor_count} tensors")
    limits = sampling.Sampling(options.samples, options.seconds)
    key = ProfileKey(
        structure_hash=graph.structure_hash,
        device_type=options.device_type,
        processor=processor_model(),
        accelerator=torch.cuda.get_device_name() if device_type == "cuda" else "",
        threads=options.threads,
        torch=torch.__version__,
        samples=limits.samples,
        limit_seconds=limits.limit_seconds,
    )
    usual = sampling.Sampling()
    better = replace(key, samples=usual.samples, limit_seconds=usual.limit_seconds)
    is_better = usual.samples >= limits.samples and usual.limit_seconds >= limits.limit_seconds
    keys = [better, key] if is_better else [key]
    for known in keys if options.cache else ():
        profile = load_profile(options.cache, known, graph)
        if profile is not None:
            say(f"profile: from {known.file(options.cache)}")
            return _with_profile(graph, profile, known, options.calibrate)
    with telling_of_throttling(say):
        profile = measure(captured, options.threads, limits, say)
    if options.cache:
        save_profile(options.cache, key, graph, profile)
    return _with_profile(graph, profile, key, options.calibrate)


def _with_profile(
    graph: OperatorGraph, profile: Profile, key: ProfileKey, calibrate: bool
) -> OperatorGraph:
    """calibrate: scale the operators' times so that they sum to the time of the whole step."""
    total, whole = profile.sum_of_medians_seconds, profile.whole_step_seconds
    say(
        f"profile: {profile.samples} samples; operators sum to {total * 1e3:.1f} ms, the whole "
        f"step takes {whole * 1e3:.1f} ms ({total / whole - 1:+.1%})"
        + (f"; calibrated by {whole / total:.4f}" if calibrate else "; not calibrated")
    )
    kept = profile.calibrated() if calibrate else profile
    notes = {
        **graph.notes,
        "processor": key.processor,
        **({"accelerator": key.accelerator} if key.accelerator else {}),
        "threads": key.threads,
        "torch": key.torch,
        "warm_up_steps": profile.warm_up_steps,
        "samples": profile.samples,
        "sum_of_medians_seconds": total,
        "whole_step_seconds": whole,
        "calibration": kept.sum_of_medians_seconds / total,
    }
    timed = graph.with_seconds({key.device_type: kept.seconds})
    full = replace(timed, workspace_bytes=profile.workspace_bytes)
    peak = peak_on_one_device(full)
    program = beside_tensors_bytes(profile, peak)
    return replace(full, notes={**notes, "one_device_bytes": peak, "program_bytes": program})


if __name__ == "__main__":
    sys.exit(main())
