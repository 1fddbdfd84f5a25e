"""Turns a captured step and a placement into one straight-line module for this rank.

`print(program.module.code)` shows the rank's whole step. A value is released after its last use;
receives stand before their first consumer, sends right after their producer. The module holds only
this rank's parameters, buffers and optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, RankMessages
from placewire.job.transport.transport import Transport
from placewire.optimizer.capture.execute import execution_of
from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.step import CapturedStep
from placewire.optimizer.capture.stepped import Stepped
from placewire.optimizer.capture.updates import AdamW, Sgd
from placewire.optimizer.placement import Placement


class Send(torch.nn.Module):
    def __init__(self, transport: Transport, message: RankMessage, layout: Layout) -> None:
        super().__init__()
        self.transport, self.message, self.layout = transport, message, layout

    def forward(self, value: torch.Tensor) -> None:
        self.transport.send(self.message, self.layout.pack(value))


class Complete(torch.nn.Module):
    """Waits, before a value is overwritten, until its send no longer reads it."""

    def __init__(self, transport: Transport, message: RankMessage) -> None:
        super().__init__()
        self.transport, self.message = transport, message

    def forward(self) -> None:
        self.transport.complete(self.message)


class Receive(torch.nn.Module):
    def __init__(self, transport: Transport, message: RankMessage, layout: Layout) -> None:
        super().__init__()
        self.transport, self.message, self.layout = transport, message, layout

    def forward(self) -> torch.Tensor:
        return self.layout.unpack(self.transport.receive(self.message))


@dataclass(frozen=True)
class RankProgram:
    """module(*inputs) runs one step and returns the loss where this rank computes it, else None.

    inputs: positions in a batch of the tensors that the module takes. stepped: the modules that
    must be told the step's number. held: the parameters and buffers that this rank keeps, by
    operator id. updates: the optimizer's step for each of these parameters, by the parameter's
    operator id. operators: operator ids by the name of the node that ends the operator.
    """

    module: fx.GraphModule
    inputs: tuple[int, ...]
    stepped: tuple[Stepped, ...]
    held: Mapping[str, torch.Tensor]
    updates: Mapping[str, AdamW | Sgd]
    operators: Mapping[str, str]

    def tell(self, step: int) -> None:
        """To be called before a step runs, with its number from 0."""
        for part in self.stepped:
            part.step = step


def lower(
    captured: CapturedStep,
    placement: Placement,
    device: str,
    messages: RankMessages,
    transport: Transport,
) -> RankProgram:
    """Raises JobError where the placement does not fit the captured step."""
    if captured.operators.structure_hash != placement.structure_hash:
        raise JobError(
            f"this server's capture has structure {captured.operators.structure_hash[:12]}, the "
            f"placement was made for {placement.structure_hash[:12]}",
            "make the model's sources and the versions of torch the same on every server, and "
            "solve again",
        )
    return _Lowering(captured, placement.order[device], device, messages, transport).program()


@dataclass
class _Lowering:
    captured: CapturedStep
    order: tuple[str, ...]
    device: str
    messages: RankMessages
    transport: Transport
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[str, fx.Node] = field(default_factory=dict)
    stepped: list[Stepped] = field(default_factory=list)
    held: dict[str, torch.Tensor] = field(default_factory=dict)
    updates: dict[str, AdamW | Sgd] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arriving = {message.producer: message for message in self.messages.receives}

    def program(self) -> RankProgram:
        code, nodes = self.captured.code, self.captured.nodes
        inputs = [identifier for identifier in self.order if identifier in code.inputs]
        for identifier in inputs:
            self.values[identifier] = self.graph.placeholder(identifier)
        for identifier in self.order:
            if identifier not in nodes:
                raise JobError(
                    f"the placement names operator {identifier!r}, which was not captured"
                )
            self._operator(nodes[identifier])
            self._sends(identifier)
        has_loss = self.captured.loss in self.order
        self.graph.output(self.values[self.captured.loss] if has_loss else None)
        self.graph.lint()
        for node in self.graph.nodes:
            node.meta = {}  # shapes and source lines of the capture, as large as a small model
        return RankProgram(
            module=fx.GraphModule(self.root, self.graph),
            inputs=tuple(code.inputs[identifier] for identifier in inputs),
            stepped=tuple(self.stepped),
            held=self.held,
            updates=self.updates,
            operators={self.values[identifier].name: identifier for identifier in self.order},
        )

    def _operator(self, node: fx.Node) -> None:
        code = self.captured.code
        if node.name in code.inputs:
            return
        if node.op == "placeholder":
            # Held outside the model, whose other parameters can then be released.
            self.held[node.name] = self.captured.values[node.name]
            self.root.register_buffer(node.name, self.held[node.name])
            self.values[node.name] = self.graph.get_attr(node.name)
            return
        operands = {source: self._operand(source, node.name) for source in node.all_input_nodes}
        if node.name in code.writers:
            self._complete_sends_of(self.captured.analysis.sharing[node.name])
        execution = execution_of(self.captured, node)
        self.stepped.extend(execution.stepped)
        if execution.update is not None:
            self.updates[code.writers[node.name]] = execution.update
        self.values[node.name] = execution.write(node, self.graph, self.root, operands.__getitem__)

    def _operand(self, source: fx.Node, consumer: str) -> fx.Node:
        if source.name in self.values:
            return self.values[source.name]
        if source.op == "get_attr":
            name = str(source.target)
            self.root.register_buffer(name, self.captured.code.constants[name])
            self.values[source.name] = self.graph.get_attr(name)
        elif (message := self.arriving.get(source.name)) is not None:
            receive = Receive(self.transport, message, self._layout(message))
            self.values[source.name] = self._call(f"receive_{source.name}", receive)
        elif source.name in self.order:
            raise JobError(
                f"on {self.device} {consumer!r} comes before its operand {source.name!r}",
                "check the placement file with `optimizer check`",
            )
        else:
            raise JobError(
                f"{consumer!r} on {self.device} needs {source.name!r}, which no message brings",
                "check the placement file with `optimizer check`",
            )
        return self.values[source.name]

    def _sends(self, identifier: str) -> None:
        for message in self.messages.sends.get(identifier, ()):
            send = Send(self.transport, message, self._layout(message))
            self._call(f"send_{message.index}", send, self.values[identifier])

    def _complete_sends_of(self, identifiers: frozenset[str]) -> None:
        for identifier in sorted(identifiers):
            for message in self.messages.sends.get(identifier, ()):
                if identifier in self.values:
                    self._call(f"complete_{message.index}", Complete(self.transport, message))

    def _call(self, name: str, module: torch.nn.Module, *arguments: fx.Node) -> fx.Node:
        self.root.add_module(name, module)
        return self.graph.create_node("call_module", name, arguments, name=name)

    def _layout(self, message: RankMessage) -> Layout:
        layout = self.captured.layouts.get(message.producer)
        if layout is None:
            raise JobError(
                f"message {message.index}: {message.producer!r} gives no tensor and cannot be sent",
                "check the placement file with `optimizer check`",
            )
        if layout.wire_bytes != message.bytes or message.output:
            raise JobError(
                f"message {message.index} says {message.bytes} bytes for output {message.output} "
                f"of {message.producer!r}, which is one tensor of {layout.wire_bytes} bytes",
                "check the placement file with `optimizer check`",
            )
        return layout
