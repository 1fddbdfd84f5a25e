"""The joint forward and backward graph of a step: the one place that calls torch's private API.

`aot_export_joint_with_descriptors` is private and changes between releases, so torch is pinned
exactly, and everything that depends on the form of its result is in this file.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import fx

from placewire.optimizer.capture.branches import with_conditionals
from placewire.optimizer.capture.errors import CaptureError, one_line, user_location
from placewire.optimizer.capture.nodes import MODULE
from placewire.optimizer.capture.protocol import Autocast, Tensors, UnderAutocast

_T = TypeVar("_T")


@dataclass(frozen=True)
class JointGraph:
    """A graph whose placeholders and outputs have known roles.

    Keys are names (`model.0.weight`) of the module as exported, or positions of inputs. The graph
    is functional: gradients and new buffer values are results, nothing is written in place.
    parameters are in the order of the module's own. values holds the real parameters and buffers;
    tied parameters are one object under two names.
    """

    graph: fx.Graph
    constants: Mapping[str, torch.Tensor]
    values: Mapping[str, torch.Tensor]
    parameters: Mapping[str, fx.Node]
    buffers: Mapping[str, fx.Node]
    inputs: Mapping[int, fx.Node]
    tangents: tuple[fx.Node, ...]
    loss: fx.Node
    gradients: Mapping[str, fx.Node]
    new_buffers: Mapping[str, fx.Node]


def joint_graph(
    module: torch.nn.Module, inputs: Tensors, where: str, autocast: Autocast | None = None
) -> JointGraph:
    """Raises CaptureError, with the user's source line where torch gives one.

    autocast: the module runs under it; its casts become operators, as those of the module's own do.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    order = {name: k for k, (name, _) in enumerate(module.named_parameters(remove_duplicate=False))}
    whole = module if autocast is None else UnderAutocast(module, autocast)
    try:
        with _quiet_torch(), _unfused_lstm(module), contextlib.ExitStack() as stack:
            # Graphs on the way are read as graphs: their Python source is never written.
            stack.enter_context(_use_lazy_graph_module(True))
            exported = torch.export.export(whole, inputs, strict=False).module(check_guards=False)
            for node in exported.graph.nodes:
                # The history of a node would be copied to the bottom whenever the node is run.
                node.meta.pop("from_node", None)
            joint = aot_export_joint_with_descriptors(stack, exported, inputs)
    except Exception as error:
        raise CaptureError(_explained(error, where)) from error
    with_conditionals(joint.graph_module)
    prefix = "" if whole is module else f"{UnderAutocast.PREFIX}."
    _note_modules(joint.graph_module.graph, prefix)
    values = {
        **dict(exported.named_parameters(remove_duplicate=False)),
        **dict(exported.named_buffers(remove_duplicate=False)),
    }
    roles = _with_roles(joint.graph_module, values, where)
    return _named_as_in_the_module(roles, prefix, order)


def _note_modules(graph: fx.Graph, prefix: str) -> None:
    """By the innermost module that was called. torch numbers repeated calls, as in `cell@3`."""
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        path = next((path for path, _ in reversed(stack.values())), "")
        node.meta[MODULE] = re.sub(r"@\d+", "", path).removeprefix(prefix)


def _named_as_in_the_module(joint: JointGraph, prefix: str, order: Mapping[str, int]) -> JointGraph:
    """order: where each parameter stands in the module."""

    def named(values: Mapping[str, _T]) -> dict[str, _T]:
        return {name.removeprefix(prefix): value for name, value in values.items()}

    parameters = named(joint.parameters)
    return replace(
        joint,
        values=named(joint.values),
        parameters={name: parameters[name] for name in sorted(parameters, key=order.__getitem__)},
        buffers=named(joint.buffers),
        gradients=named(joint.gradients),
        new_buffers=named(joint.new_buffers),
    )


def _with_roles(
    module: fx.GraphModule, values: Mapping[str, torch.Tensor], where: str
) -> JointGraph:
    from torch._functorch._aot_autograd import descriptors as d

    parameters: dict[str, fx.Node] = {}
    buffers: dict[str, fx.Node] = {}
    inputs: dict[int, fx.Node] = {}
    tangents: list[fx.Node] = []
    for node in module.graph.find_nodes(op="placeholder"):
        role = node.meta["desc"]
        if isinstance(role, d.ParamAOTInput):
            parameters[role.target] = node
        elif isinstance(role, d.BufferAOTInput):
            buffers[role.target] = node
        elif isinstance(role, d.PlainAOTInput):
            inputs[role.idx] = node
        elif isinstance(role, d.TangentAOTInput):
            tangents.append(node)
        else:
            raise CaptureError(f"{where}: inputs of kind {type(role).__name__} are not supported")

    losses: list[Any] = []
    gradients: dict[str, fx.Node] = {}
    new_buffers: dict[str, fx.Node] = {}
    output = module.graph.output_node()
    results: Any = output.args[0]
    for value, role in zip(results, output.meta["desc"], strict=True):
        if isinstance(role, d.PlainAOTOutput):
            losses.append(value)
        elif isinstance(role, d.InputMutationAOTOutput):
            if not isinstance(role.mutated_input, d.BufferAOTInput):
                raise CaptureError(
                    f"{where}: the step writes into {_input_name(role.mutated_input)} in place; "
                    "inputs and parameters must be left as they are (clone them first)"
                )
            new_buffers[role.mutated_input.target] = value
        elif (
            value is not None
            and isinstance(role, d.GradAOTOutput)
            and isinstance(role.grad_of, d.ParamAOTInput)
        ):
            gradients[role.grad_of.target] = value
    return JointGraph(
        graph=module.graph,
        constants=_constants(module),
        values=values,
        parameters=parameters,
        buffers=buffers,
        inputs=inputs,
        tangents=tuple(tangents),
        loss=_scalar_loss(losses, gradients, where),
        gradients=gradients,
        new_buffers=new_buffers,
    )


def _input_name(role: Any) -> str:
    """A parameter's name, or which of the step's inputs."""
    name = getattr(role, "target", None)
    return f"parameter {name}" if name else f"input {role.idx}"


def _constants(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    names = {str(node.target) for node in module.graph.find_nodes(op="get_attr") if node.users}
    return {name: getattr(module, name) for name in sorted(names)}


def _scalar_loss(losses: list[Any], gradients: Mapping[str, fx.Node], where: str) -> fx.Node:
    if len(losses) != 1 or not isinstance(losses[0], fx.Node):
        raise CaptureError(
            f"{where}: the step returns {len(losses)} values; it must return the scalar loss alone"
        )
    value = losses[0].meta["val"]
    if value.numel() != 1:
        raise CaptureError(
            f"{where}: the step returns a tensor of shape {tuple(value.shape)}; it must return "
            "the scalar loss (give TrainingStep a `loss`, or reduce it in the model)"
        )
    if not gradients:
        raise CaptureError(
            f"{where}: the loss depends on no trainable parameter: there is nothing to train"
        )
    return losses[0]


def _unfused_lstm(module: torch.nn.Module) -> contextlib.AbstractContextManager[object]:
    """Captures an LSTM as matrix products: the CPU's fused kernel gives other tensors than it
    declares, and is one operator for a whole layer, which cannot be spread."""
    if any(isinstance(part, torch.nn.LSTM) for part in module.modules()):
        return torch.backends.mkldnn.flags(enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """torch prints partial graphs and tracebacks when an export fails; the error says it better.

    What the user's model prints goes to standard error: standard output may carry events.
    """
    before, printed = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        logging.disable(before)


_SOURCE_LINE = re.compile(r'File "([^"]+)", line (\d+), in \S+\n\s*(.+)')

# What torch calls the things that no fixed graph can hold.
_DATA_DEPENDENT = {
    "GuardOnDataDependentSymNode": "a branch on the values of a tensor",
    "DataDependentOutputException": "a Python number taken out of a tensor",
    "DynamicOutputShapeException": "a tensor whose shape depends on values",
}


def _explained(error: Exception, where: str) -> str:
    lines = [m for m in _SOURCE_LINE.findall(str(error)) if "site-packages" not in m[0]]
    place = user_location(error)
    if lines:
        file, number, source = lines[-1]
        place = f"{file}:{number}: `{source.strip()}`"
    place = place or where
    kind = _DATA_DEPENDENT.get(type(error).__name__)
    if kind:
        return (
            f"{place}: {kind} (data-dependent control flow) cannot be part of a step that is fixed "
            "before it runs; use torch.where or masks, or move the decision out of the model"
        )
    return f"{place}: the step cannot be captured: {one_line(error)}"
