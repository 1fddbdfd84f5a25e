"""Shows a decision about placement: what runs where, why, and what else was considered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.few_names import MOST_NAMES, few_names
from placewire.controller.show.console import table
from placewire.optimizer.explain.uplinks import uplink_words
from placewire.optimizer.placement import Placement
from placewire.optimizer.quantities import format_bytes, format_seconds

# How a copy of an operator for one micro-batch is called.
_OF_MICRO_BATCH = re.compile(r"_m\d+$")


def why(placement: Placement) -> list[str]:
    """Explains a placement in sentences: against its bound, against one device, and its traffic."""
    step, single = placement.step_seconds, placement.best_single_device_seconds
    others = len(placement.variants) > 1
    what = "placement of this variant" if others else "placement"
    lines = [
        f"predicted step {format_seconds(step)}; no {what} can do better than "
        f"{format_seconds(placement.bound_seconds)} (gap {placement.gap:.1%})"
    ]
    if others:
        least = format_seconds(placement.least_bound_seconds)
        lines.append(f"no placement of any variant can do better than {least}")
    if single is None:
        lines.append("no single device can hold the model: it must be distributed")
    elif placement.engine == "single":
        lines.append("one device, because the plan asks for the best single one")
    elif len(placement.devices_used) == 1:
        lines.append("do not distribute this: one device is the fastest that was found")
    else:
        lines.append(
            f"the best single device would take {format_seconds(single)}: {single / step:.2f}×"
        )
    sent = format_bytes(sum(message.bytes for message in placement.messages))
    lines.append(
        f"{len(placement.messages)} messages, {sent} a step between {len(placement.server_pairs)} "
        f"pairs of servers; network sharing: {placement.sharing}"
    )
    return lines + uplink_words(placement)


def where_data_is(placement: Placement, notes: Mapping[str, Any]) -> list[str]:
    """Says which device computes the loss, or the outputs of an inference, and which read the
    batch. notes: of a captured graph."""
    computed = [notes["loss"]] if "loss" in notes else notes.get("outputs", [])
    if not computed or "inputs" not in notes:
        return []
    made: dict[str, list[str]] = {}
    for name in computed:
        made.setdefault(placement.operators[name], []).append(name)
    result = f"the loss is computed on {placement.operators[computed[0]]}"
    if "loss" not in notes:
        result = f"the outputs are computed: {_names_by_device(made)}"
    readers: dict[str, list[str]] = {}
    for name in notes["inputs"]:
        readers.setdefault(placement.operators[name], []).append(name)
    read = _names_by_device(readers)
    tensors = (sent for message in placement.messages for sent in message.tensors)
    sent = sum(one.bytes for one in tensors if one.producer in notes["inputs"])
    if notes.get("buckets"):
        read = f"every rank reads the batch, whose shapes say its bucket; inputs are: {read}"
    else:
        read = f"the batch is read where its inputs are: {read}"
    return [
        result,
        f"{read}; {format_bytes(sent)} of it are sent on",
    ]


def _names_by_device(readers: Mapping[str, Sequence[str]]) -> str:
    """readers: by device, the names of its inputs, or outputs. In a step of many micro-batches
    these are too many to be listed: then they are told without their micro-batches."""
    if sum(map(len, readers.values())) <= MOST_NAMES:
        return "; ".join(f"{', '.join(names)} on {device}" for device, names in readers.items())
    parts: dict[str, int] = Counter(
        _OF_MICRO_BATCH.sub("", name) for names in readers.values() for name in names
    )
    inputs = ", ".join(name if n == 1 else f"{n} parts of {name}" for name, n in parts.items())
    return f"{inputs} on {few_names([*readers])}"


def beside_tensors(notes: Mapping[str, Any]) -> list[str]:
    """Says what memory a rank needs beside its device's predicted peak. notes: of a profile."""
    measured = [of.get("program_bytes") for of in notes.get("profiles", {"": notes}).values()]
    program = max((one for one in measured if one is not None), default=None)
    if program is None:
        return []
    return [f"beside the tensors on its device a rank's program takes {format_bytes(program)}"]


def kept_in_python(notes: Mapping[str, Any]) -> list[str]:
    """Says what forward keeps from one call to the next that no step would. notes: of a captured
    graph."""
    return [notes["kept"]] if isinstance(notes.get("kept"), str) else []


def placement_table(placement: Placement) -> Table:
    count = Counter(placement.operators.values())
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for message in placement.messages:
        sent[message.source] += message.bytes
        received[message.destination] += message.bytes
    made = table(
        f"Placement of {len(placement.operators)} operators",
        words=("device",),
        figures=("operators", "sends a step", "receives a step"),
    )
    idle = [device for device in placement.cluster.device_names if not count[device]]
    told = [] if len(idle) <= MOST_NAMES else idle
    for device in placement.cluster.device_names:
        if device not in told:
            made.add_row(
                device, str(count[device]), format_bytes(sent[device]),
                format_bytes(received[device]),
            )  # fmt: skip
    if told:
        made.caption = f"{len(told)} further devices run nothing: {few_names(told)}"
        made.caption_justify = "left"
    return made


def variants_table(placement: Placement) -> Table:
    made = table(
        "Variants of the step that were compared",
        words=("variant",),
        figures=("operators", "one device", "no step below", "predicted step", ""),
    )
    for one in placement.variants:
        alone, step = one.single_device_seconds, one.step_seconds
        made.add_row(
            one.name,
            str(one.operators),
            "does not fit" if alone is None else format_seconds(alone),
            format_seconds(one.bound_seconds),
            "not searched" if step is None else format_seconds(step),
            "taken" if one.structure_hash == placement.structure_hash else "",
        )
    return made


def buckets_table(decision: PlacementDecision) -> Table:
    made = table(
        "Buckets: the shapes of batches, each with its placement of the same parameters",
        words=("bucket",),
        figures=("of the steps", "operators", "sends a step", "bound", "predicted step"),
    )
    for one in decision.buckets:
        placement = one.placement
        made.add_row(
            one.name, f"{one.share:.0%}", str(len(placement.operators)),
            format_bytes(sum(message.bytes for message in placement.messages)),
            format_seconds(placement.bound_seconds), format_seconds(placement.step_seconds),
        )  # fmt: skip
    mean = decision.predicted_step_seconds
    made.add_row("mean", "", "", "", "", format_seconds(mean), end_section=True)
    return made


def considered_table(decision: PlacementDecision) -> Table:
    made = table(
        "Sharings considered, each with its own placement",
        words=("sharing", "rails", "predicted step", "devices", ""),
    )
    for placement in decision.compared:
        made.add_row(
            placement.sharing,
            ", ".join(placement.cluster.rails),
            format_seconds(placement.step_seconds),
            str(len(placement.devices_used)),
            "taken" if placement is decision.placement else "",
        )
    return made
