"""The arguments that `optimizer capture` and `optimizer profile` share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.variants import Autocast, Recompute
from placewire.optimizer.commands.arguments import output_file, positive, whole
from placewire.optimizer.commands.outcome import say

if TYPE_CHECKING:
    from placewire.optimizer.capture.capture_options import CaptureOptions
    from placewire.optimizer.capture.captured_step import CapturedStep
    from placewire.optimizer.capture.protocol import DeviceType
    from placewire.optimizer.capture.updates import OptimizerChoice
    from placewire.optimizer.graph.operator_graph import OperatorGraph

AUTO = "auto"
# More micro-batches make operators slower, and pipelines of this many lose little to their ends.
_ADMITTED = (1, 2, 4, 8, 16)


def add_model_arguments(
    parser: argparse.ArgumentParser,
    what: str = "module:function, for example placewire.examples.models.mlp:training_step",
    complete: bool = True,
    several: bool = True,
) -> None:
    """what: help for the argument `model`. complete: whether --batch and --out are required.
    several: whether --accumulate and --shards take several numbers."""
    numbers: dict[str, Any] = {"nargs": "+", "default": [1]} if several else {"default": 1}
    parser.add_argument("model", help=what)
    parser.add_argument("--batch", type=positive, required=complete, help="samples in one step")
    parser.add_argument(
        "--optimizer",
        default="{}",
        help='JSON; default: {"name": "adamw", "lr": 0.001, "options": {}}',
    )
    each = "; of several numbers each gets a graph file" if several else ""
    decided = (
        "; auto: of 1, 2, 4, 8 and 16 those that the step can be cut into without training "
        "otherwise (that its loss is a mean over samples shows only where it is measured)"
        if several
        else ""
    )
    parser.add_argument(
        "--accumulate",
        type=_count_or_auto if several else positive,
        metavar="N",
        help="how many micro-batches the batch is cut into; their gradients are added; default: 1"
        + each
        + decided,
        **numbers,
    )
    parser.add_argument(
        "--shards",
        type=positive,
        metavar="N",
        help="how many shards a large weight is cut into by rows, and how many replicas small ones "
        "have, each with an update and a device of its own; default: 1" + each,
        **numbers,
    )
    parser.add_argument(
        "--recompute",
        choices=get_args(Recompute),
        default="none",
        help="the layers that are computed again in the backward half, which takes less memory; "
        "default: none, but for those that the model itself has in torch.utils.checkpoint",
    )
    parser.add_argument(
        "--bucket",
        metavar="NAME",
        help="of a model whose batches have several shapes, the one to take; default: the one of "
        "its example_inputs",
    )
    parser.add_argument(
        "--autocast", choices=get_args(Autocast), help="run model and loss in torch.autocast"
    )
    parser.add_argument(
        "--seed", type=whole, default=0, help="seed of parameters, data and dropout; default: 0"
    )
    parser.add_argument(
        "--out",
        type=output_file,
        required=complete,
        help="graph file to write; gzip where it ends in .gz",
    )


def add_research_arguments(parser: argparse.ArgumentParser) -> None:
    """For graphs that are made to compare methods of placement, and that no job trains."""
    research = parser.add_argument_group(
        "for research",
        "Graphs as papers on placement have them. Every command takes them; no job of "
        "`controller apply` trains them.",
    )
    research.add_argument(
        "--decompose",
        action="store_true",
        help="as core operators, with the update of each parameter (adam, adamw or sgd) written "
        "out as elementary operators and its state as buffers: many tiny operators, with adamw 40 "
        "for each parameter",
    )
    research.add_argument(
        "--inference",
        action="store_true",
        help="the forward pass alone, in evaluation mode: no loss, no gradients, no update; what "
        "the model returns is computed and kept",
    )
    research.add_argument(
        "--half",
        action="store_true",
        help="with --inference: parameters and numbers are float16, for which modelled devices "
        "have peaks of their own",
    )


def _count_or_auto(text: str) -> int | str:
    try:
        return text if text == AUTO else positive(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor auto") from error


def each_cut(options: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """The options of each number of micro-batches and shards, as single numbers. Where there are
    several, the name of the file `out` ends in both, as in step.4x2.json.gz. Raises CaptureError
    before the first where one of the numbers does not divide the batch, or an inference is to be
    cut."""
    counts = options.accumulate
    batches = [("--batch", options.batch)] if options.batch is not None else []
    batches += [("--small-batches", batch) for batch in getattr(options, "small_batches", ()) or ()]
    if AUTO in counts:
        if len(set(counts)) > 1:
            raise CaptureError("--accumulate takes numbers, or auto alone")
        counts = [n for n in _ADMITTED if all(batch % n == 0 for _, batch in batches)]
    for count in counts:
        for option, batch in batches:
            if batch % count:
                raise CaptureError(
                    f"{option} {batch} cannot be cut into --accumulate {count} equal "
                    f"micro-batches; give a batch that {count} divides"
                )
    both = [(count, shards) for count in counts for shards in options.shards]
    found = list(dict.fromkeys(both))
    if options.inference:
        from placewire.optimizer.capture.inference import refuse_what_is_of_training

        for count, shards in found:
            refuse_what_is_of_training(capture_options(_cut(options, count, shards)))
    for count, shards in found:
        one = _cut(options, count, shards)
        if (len(found) > 1 or AUTO in options.accumulate) and options.out is not None:
            one.out = _marked(options.out, f"{count}x{shards}")
        yield one


def _cut(options: argparse.Namespace, count: int, shards: int) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(options), "accumulate": count, "shards": shards})


def each_admitted(
    options: argparse.Namespace, graph_of: Callable[[argparse.Namespace], OperatorGraph]
) -> None:
    """Calls graph_of for each_cut. With --accumulate auto a number is left out that the step cannot
    be cut into; and a step whose micro-batches would change what is trained stays whole, as far as
    graph_of can tell. A line says why."""
    decided, whole = AUTO in options.accumulate, False
    for one in each_cut(options):
        if whole and one.accumulate > 1:
            continue
        try:
            graph = graph_of(one)
        except CaptureError as error:
            if not decided or one.accumulate == 1:
                raise
            say(f"left out: {error}")
            continue
        reason = graph.notes.get("whole_batch")
        if decided and reason is not None and not whole:
            whole = True
            say(
                "the step is not cut into micro-batches, which would change what is trained: "
                f"{reason}. Give --accumulate numbers to have it cut all the same"
            )


def bucket_of(captured: CapturedStep, options: argparse.Namespace) -> CapturedStep:
    """The bucket that is asked for. Raises CaptureError where the model has none of this name."""
    if options.bucket is None:
        return captured
    if (found := captured.each_bucket.get(options.bucket)) is None:
        known = ", ".join(map(repr, filter(None, captured.each_bucket))) or "none"
        raise CaptureError(f"{options.model} has no bucket {options.bucket!r}; it has {known}")
    return found


def _marked(file: Path, mark: str) -> Path:
    """step.json.gz -> step.4x2.json.gz"""
    stem, dot, rest = file.name.partition(".")
    return file.with_name(f"{stem}.{mark}{dot}{rest}")


def capture_options(options: argparse.Namespace, device_type: DeviceType = "cpu") -> CaptureOptions:
    """Of each_cut: with one number of micro-batches and of shards, and all buckets. Raises
    CaptureError."""
    from placewire.optimizer.capture.capture_options import CaptureOptions

    optimizer = parse_optimizer(options.optimizer)
    trains_in_fp16 = options.autocast == "fp16" and not options.inference
    if trains_in_fp16 and options.decompose:
        raise CaptureError(
            "--decompose takes no --autocast fp16, which needs a scaler, and a scaler skips whole "
            "updates: give --autocast bf16"
        )
    if trains_in_fp16 and optimizer.scaler is None:
        raise CaptureError(
            "--autocast fp16: small gradients vanish where the loss is not scaled, and a plan "
            "without a scaler is refused; give --optimizer '{\"scaler\": {}}', or --autocast bf16, "
            "which needs no scaler"
        )
    if options.half and not options.inference:
        raise CaptureError(
            "--half is of an inference: add --inference, or train with --autocast fp16 or bf16"
        )
    return CaptureOptions(
        options.model,
        options.batch,
        optimizer,
        options.seed,
        accumulate=options.accumulate,
        autocast=options.autocast,
        device_type=device_type,
        shards=options.shards,
        recompute=options.recompute,
        decompose=options.decompose,
        inference=options.inference,
        half=options.half,
    )


def parse_optimizer(text: str) -> OptimizerChoice:
    """Raises CaptureError where the text describes no optimizer."""
    from placewire.optimizer.capture.updates import OptimizerChoice

    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise TypeError("no JSON object")
        return OptimizerChoice.of(document)
    except (TypeError, json.JSONDecodeError) as error:
        raise CaptureError(
            f"--optimizer {text!r}: {error}; accepted: a JSON object with name, lr, "
            "options, clip_norm, scaler, schedule and groups"
        ) from error
