"""Refuses a validation that needs more memory than its device has.

It keeps no activations for a backward half, so that it hardly ever needs more than a training step.
"""

from __future__ import annotations

from placewire.job.errors import JobError
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.nodes import storage_of
from placewire.optimizer.placement import Placement

_MIB = 2**20


def refuse_what_does_not_fit(
    captured: CapturedStep, validated: Placement, placement: Placement, device: str
) -> None:
    """Raises JobError where validation needs more memory than the device has."""
    validation = captured.validation
    assert validation is not None
    cluster, training = placement.cluster, captured.operators
    room = cluster.devices[cluster.device_names.index(device)].memory_bytes
    held = sum(
        int(training.weight_bytes[training.index_of[name]])
        for name in placement.order[device]
        if name not in captured.code.inputs
    )
    needed = held + most_bytes(validation, validated, device)
    if needed > room:
        raise JobError(
            f"validation needs {needed / _MIB:.1f} MiB on {device}, which has "
            f"{room / _MIB:.1f} MiB",
            "cut the batch into more micro-batches (job.accumulate), or leave out job.validation",
        )


def most_bytes(validation: CapturedStep, placement: Placement, device: str) -> int:
    """The most that its inputs, activations and received tensors take on the device beside what
    stays between steps. Received tensors have memory from the beginning on."""
    graph, order = validation.operators, placement.order[device]
    place = {name: k for k, name in enumerate(order)}
    change = [0] * (len(order) + 1)
    last: dict[object, int] = {}
    first: dict[object, int] = {}
    size: dict[object, int] = {}
    for name in order:
        node, i = validation.nodes[name], graph.index_of[name]
        memory = storage_of(node) or name
        first.setdefault(memory, place[name])
        readers = [place[user.name] for user in node.users if user.name in place]
        last[memory] = max([last.get(memory, 0), place[name], *readers])
        held = int(graph.weight_bytes[i]) if name in validation.code.inputs else 0
        size[memory] = size.get(memory, 0) + int(graph.activation_bytes[i]) + held
    for memory, count in size.items():
        change[first[memory]] += count
        change[last[memory] + 1] -= count
    live = sum(one.bytes for one in placement.messages if one.destination == device)
    most = live
    for more in change:
        live += more
        most = max(most, live)
    return most
