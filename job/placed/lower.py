"""Turns a captured step and a placement into one straight-line module for this rank.

`print(program.module.code)` shows the rank's whole step. A value is released after its last use;
receives stand before their first consumer, sends right after their producer. A tensor that travels
with others is packed right after its own producer, and all leave after the last. The module holds
only this rank's parameters, buffers and optimizer state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, RankMessages
from placewire.job.transport.transport import Transport
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.execute import execution_of
from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.stepped import Stepped
from placewire.optimizer.capture.updates import Update
from placewire.optimizer.placement import Placement, Sent

# torch's memory on a GPU begins at multiples of this, and on a CPU at multiples of a divisor of it.
ALIGNED_BYTES = 512


class Send(torch.nn.Module):
    def __init__(self, transport: Transport, message: RankMessage, layout: Layout) -> None:
        super().__init__()
        self.transport, self.message, self.layout = transport, message, layout

    def forward(self, value: torch.Tensor) -> None:
        self.transport.send(self.message, self.layout.pack(value))


class Pack(torch.nn.Module):
    """Copies a tensor into the wire of its message, from byte `start` on. The first of a message is
    given no wire and makes it."""

    def __init__(self, message: RankMessage, start: int, layout: Layout) -> None:
        super().__init__()
        self.message, self.start, self.layout = message, start, layout

    def forward(self, value: torch.Tensor, wire: torch.Tensor | None = None) -> torch.Tensor:
        if wire is None:
            wire = torch.empty(self.message.bytes, dtype=torch.uint8, device=value.device)
        wire[self.start : self.start + self.layout.wire_bytes].copy_(self.layout.pack(value))
        return wire


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


class Unpack(torch.nn.Module):
    """Takes a tensor out of the wire of its message, where it begins at byte `start`."""

    def __init__(self, start: int, layout: Layout) -> None:
        super().__init__()
        self.start, self.layout = start, layout

    def forward(self, wire: torch.Tensor) -> torch.Tensor:
        part = wire[self.start : self.start + self.layout.wire_bytes]
        # torch refuses a view that does not begin at a multiple of its elements' size; and kernels
        # may sum in another order where memory is aligned otherwise than torch allocates it.
        return self.layout.unpack(part.clone() if self.start % ALIGNED_BYTES else part)


@dataclass(frozen=True)
class RankProgram:
    """module(*inputs) runs one step and returns those of the reported scalars that this rank
    computes, by name: the loss is `loss`.

    inputs: positions in a batch of the tensors that the module takes. stepped: the modules that
    must be told the step's number. held: the parameters and buffers that this rank keeps, by
    operator id. updates: the optimizer's step for each of these parameters, by the parameter's
    operator id. operators: operator ids by the name of the node that ends the operator.
    """

    module: fx.GraphModule
    inputs: tuple[int, ...]
    stepped: tuple[Stepped, ...]
    held: Mapping[str, torch.Tensor]
    updates: Mapping[str, Update]
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
    updates: Mapping[str, Update] | None = None,
) -> RankProgram:
    """updates: by parameter, those of a program whose optimizer state this one shares. Raises
    JobError where the placement does not fit the captured step."""
    if captured.operators.structure_hash != placement.structure_hash:
        raise JobError(
            f"this server's capture has structure {captured.operators.structure_hash[:12]}, the "
            f"placement was made for {placement.structure_hash[:12]}",
            "make the model's sources and the versions of torch the same on every server, and "
            "solve again",
        )
    order, known = placement.order[device], updates or {}
    return _Lowering(captured, order, device, messages, transport, known).program()


@dataclass
class _Lowering:
    captured: CapturedStep
    order: tuple[str, ...]
    device: str
    messages: RankMessages
    transport: Transport
    known: Mapping[str, Update] = field(default_factory=dict)
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    graph: fx.Graph = field(default_factory=fx.Graph)
    values: dict[str, fx.Node] = field(default_factory=dict)
    stepped: list[Stepped] = field(default_factory=list)
    held: dict[str, torch.Tensor] = field(default_factory=dict)
    updates: dict[str, Update] = field(default_factory=dict)
    wires: dict[tuple[Sent, ...], fx.Node] = field(default_factory=dict)  # by tensors

    def __post_init__(self) -> None:
        self.arriving = {
            one.producer: message for message in self.messages.receives for one in message.tensors
        }
        # The tensors of bundles that this rank sends, by producer: message, start in it, tensor.
        # Tensors that several ranks get are copied once, for the first of the messages.
        self.packed: dict[str, list[tuple[RankMessage, int, Sent]]] = {}
        packed = set[tuple[Sent, ...]]()
        for messages in self.messages.sends.values():
            for message in messages:
                if message.bundled and message.tensors not in packed:
                    packed.add(message.tensors)
                    for start, one in _with_starts(message):
                        self.packed.setdefault(one.producer, []).append((message, start, one))

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
        own = {n: i for n, i in self.captured.reported.items() if i in self.values}
        self.graph.output({name: self.values[identifier] for name, identifier in own.items()})
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
        execution = execution_of(self.captured, node, self.known)
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
            self._receive(message)
        elif source.name not in self.order and self._is_empty(source):
            # It is never sent: a reader elsewhere makes it.
            layout = self.captured.layouts[source.name]
            nothing = torch.empty_strided(
                layout.size, layout.stride, dtype=layout.dtype, device=source.meta["val"].device
            )
            self.root.register_buffer(f"empty_{source.name}", nothing)
            self.values[source.name] = self.graph.get_attr(f"empty_{source.name}")
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

    def _is_empty(self, source: fx.Node) -> bool:
        layout = self.captured.layouts.get(source.name)
        return layout is not None and 0 in layout.size

    def _receive(self, message: RankMessage) -> None:
        """Makes values of all tensors of the message."""
        if not message.bundled:
            (one,) = message.tensors
            receive = Receive(self.transport, message, self._layout(message, one))
            self.values[one.producer] = self._call(f"receive_{one.producer}", receive)
            return
        receive = Receive(self.transport, message, _wire_layout(message))
        wire = self._call(f"receive_{message.index}", receive)
        for start, one in _with_starts(message):
            unpack = Unpack(start, self._layout(message, one))
            self.values[one.producer] = self._call(f"unpack_{one.producer}", unpack, wire)

    def _sends(self, identifier: str) -> None:
        value = self.values[identifier]
        # A bundled tensor is copied at once: a later operator may overwrite its memory before the
        # bundle leaves.
        for message, start, one in self.packed.get(identifier, ()):
            wire = self.wires.get(message.tensors)
            pack = Pack(message, start, self._layout(message, one))
            given = (value,) if wire is None else (value, wire)
            name = f"pack_{message.index}_{one.producer}"
            self.wires[message.tensors] = self._call(name, pack, *given)
        for message in self.messages.sends.get(identifier, ()):
            if message.bundled:
                layout, sent = _wire_layout(message), self.wires[message.tensors]
            else:
                layout, sent = self._layout(message, message.tensors[0]), value
            send = Send(self.transport, message, layout)
            self._call(f"send_{message.index}", send, sent)

    def _complete_sends_of(self, identifiers: frozenset[str]) -> None:
        for identifier in sorted(identifiers):
            for message in self.messages.sends.get(identifier, ()):
                # A bundle has memory of its own, which nothing overwrites; a message of one tensor
                # may share the memory of its value.
                if identifier in self.values and not message.bundled:
                    self._call(f"complete_{message.index}", Complete(self.transport, message))

    def _call(self, name: str, module: torch.nn.Module, *arguments: fx.Node) -> fx.Node:
        self.root.add_module(name, module)
        return self.graph.create_node("call_module", name, arguments, name=name)

    def _layout(self, message: RankMessage, one: Sent) -> Layout:
        layout = self.captured.layouts.get(one.producer)
        if layout is None:
            raise JobError(
                f"message {message.index}: {one.producer!r} gives no tensor and cannot be sent",
                "check the placement file with `optimizer check`",
            )
        if layout.wire_bytes != one.bytes or one.output:
            raise JobError(
                f"message {message.index} says {one.bytes} bytes for output {one.output} "
                f"of {one.producer!r}, which is one tensor of {layout.wire_bytes} bytes",
                "check the placement file with `optimizer check`",
            )
        return layout


def _with_starts(message: RankMessage) -> Iterator[tuple[int, Sent]]:
    """The tensors of a message, with the byte at which each begins."""
    start = 0
    for one in message.tensors:
        yield start, one
        start += one.bytes


def _wire_layout(message: RankMessage) -> Layout:
    return Layout((message.bytes,), (1,), torch.uint8)
