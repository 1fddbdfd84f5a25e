"""Places what validation computes: where training computes the same.

Parameters and buffers are where training holds them, and nothing is sent to stay: a weight that is
read elsewhere is sent as in a training step. An operator is where the first micro-batch's forward
half has the operator of the same type in the same module. Every rank derives the same placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from placewire.job.errors import JobError
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.device_names import server_of
from placewire.optimizer.graph.halves import forward_half
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Message, Placement

# Types of operators whose values are there before a step begins.
_HELD = ("parameter", "buffer")


def validation_placement(
    captured: CapturedStep, placement: Placement, reporter: str | None = None
) -> Placement:
    """captured: the training step, with validation. placement: of the training step. reporter: the
    device that computes the loss; None: the one that does in training."""
    assert captured.validation is not None
    graph = captured.validation.operators
    devices = _devices(captured, captured.validation, placement, reporter)
    order: dict[str, list[str]] = {device: [] for device in placement.order}
    for i in graph.topological_order.tolist():
        order[devices[graph.ids[i]]].append(graph.ids[i])
    messages = _messages(graph, devices, _Rails(placement))
    return Placement(
        **{
            **fields_of(placement),
            "structure_hash": graph.structure_hash,
            "operators": devices,
            "order": {device: tuple(some) for device, some in order.items()},
            "messages": tuple(messages),
            "variants": (),
        }
    )


def fields_of(placement: Placement) -> dict[str, Any]:
    """Without what the placement has derived from them, which a copy would keep."""
    return {name: getattr(placement, name) for name in Placement.model_fields}


def _devices(
    captured: CapturedStep,
    validation: CapturedStep,
    placement: Placement,
    reporter: str | None,
) -> dict[str, str]:
    """By operator. Metrics are where the loss is, so that one rank reports all."""
    graph, inputs = validation.operators, validation.code.inputs
    same = _of_the_forward_half(captured.operators, placement)
    at_position = {k: placement.operators[name] for name, k in captured.code.inputs.items()}
    otherwise = placement.operators[captured.loss]
    loss = graph.index_of[validation.loss]
    with_loss = {loss}
    if (group := int(graph.colocation[loss])) >= 0:
        with_loss.update(np.flatnonzero(graph.colocation == group).tolist())
    of_group: dict[int, str] = {}
    found: dict[str, str] = {}
    for i in graph.topological_order.tolist():
        name, group = graph.ids[i], int(graph.colocation[i])
        like = same.get((graph.modules[i], graph.types[i]))
        if reporter is not None and i in with_loss:
            device = reporter
        elif name in inputs:
            device = at_position.get(inputs[name], otherwise)
        elif validation.nodes[name].op == "placeholder":
            device = placement.operators[name]
        elif like:
            device = like.pop(0) if len(like) > 1 else like[0]
        else:  # Training has no such operator.
            device = _of_an_input(graph, i, found) or otherwise
        found[name] = of_group.setdefault(group, device) if group >= 0 else device
    return found | dict.fromkeys(validation.code.metrics.values(), found[validation.loss])


def _of_the_forward_half(
    graph: OperatorGraph, placement: Placement
) -> dict[tuple[str, str], list[str]]:
    """The devices of the operators of a type in a module, in their order; with several
    micro-batches those of the first."""
    forward = forward_half(graph)
    assert forward is not None, "a captured graph says which operator makes the loss"
    found: dict[tuple[str, str], list[str]] = {}
    for i in np.flatnonzero(forward & (graph.micro_batch <= 0)).tolist():
        key = graph.modules[i], graph.types[i]
        found.setdefault(key, []).append(placement.operators[graph.ids[i]])
    return found


def _of_an_input(graph: OperatorGraph, operator: int, devices: Mapping[str, str]) -> str | None:
    """The device of the last activation that the operator reads: it is made for this batch, where
    weights are there anyway."""
    read = (graph.ids[int(graph.tensor_producer[e])] for e in graph.input_tensors(operator))
    made = [name for name in read if graph.types[graph.index_of[name]] not in _HELD]
    return devices[made[-1]] if made else None


def _messages(graph: OperatorGraph, devices: Mapping[str, str], rails: _Rails) -> list[Message]:
    found: list[Message] = []
    for i in graph.topological_order.tolist():
        source = devices[graph.ids[i]]
        for output, tensor in enumerate(graph.output_tensors(i).tolist()):
            readers = {devices[graph.ids[k]] for k in graph.tensor_consumers(tensor).tolist()}
            size = int(graph.tensor_bytes[tensor])
            for destination in sorted(readers - {source}) if size else ():
                found.append(
                    Message(
                        producer=graph.ids[i],
                        output=output,
                        source=source,
                        destination=destination,
                        bytes=size,
                        send_order=len(found),
                        rails=rails.between(source, destination),
                    )
                )
    return found


class _Rails:
    """How messages are cut: as the largest of the training between the same servers; where there is
    none, by what their NICs carry."""

    def __init__(self, placement: Placement) -> None:
        self._largest: dict[tuple[str, str], Message] = {}
        for message in placement.messages:
            ends = server_of(message.source), server_of(message.destination)
            if message.bytes > getattr(self._largest.get(ends), "bytes", 0):
                self._largest[ends] = message
        self._nics = {
            server.name: {nic.rail: nic.rate_bits_per_second for nic in server.nics}
            for server in placement.cluster.servers
        }

    def between(self, source: str, destination: str) -> Mapping[str, float]:
        """By rail the part of a message; none inside one server. Raises JobError."""
        ends = server_of(source), server_of(destination)
        if ends[0] == ends[1]:
            return {}
        if ends in self._largest:
            return self._largest[ends].rails
        ours, theirs = (self._nics[end] for end in ends)
        rates = {rail: min(rate, theirs[rail]) for rail, rate in ours.items() if rail in theirs}
        if not rates:
            raise JobError(
                f"validation sends from {ends[0]} to {ends[1]}, which have no rail in common",
                "give both a NIC on one rail, or leave out job.validation",
            )
        return {rail: rate / sum(rates.values()) for rail, rate in rates.items()}
