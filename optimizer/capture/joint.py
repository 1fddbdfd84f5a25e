"""Traces the joint forward and backward graph of a step, through a private API of torch.

`aot_export_joint_with_descriptors` is private and changes between releases, so torch is pinned
exactly, and everything that depends on the form of its result is in this file.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.branches import with_conditionals
from placewire.optimizer.capture.decompositions import attention_written_out, decompositions
from placewire.optimizer.capture.errors import (
    CaptureError,
    one_line,
    user_location,
    user_location_in,
)
from placewire.optimizer.capture.kept_values import exported_alone
from placewire.optimizer.capture.metrics import metrics_apart, refuse_no_scalar
from placewire.optimizer.capture.no_scaler import refusing_scalers
from placewire.optimizer.capture.nodes import MODULE
from placewire.optimizer.capture.own_functions import keeping_own_functions
from placewire.optimizer.capture.protocol import Tensors, UnderAutocast
from placewire.optimizer.capture.recompute import noting_checkpoints
from placewire.optimizer.capture.statistics_types import correct_statistics
from placewire.optimizer.capture.sure_draws import AnsweringSureDraws
from placewire.optimizer.capture.variants import Autocast


@dataclass(frozen=True)
class JointGraph:
    """A graph whose placeholders and outputs have known roles.

    Keys are names in the module (`model.0.weight`), or positions of inputs. The graph is
    functional: gradients and new buffer values are results, nothing is written in place. parameters
    are in the module's order. values: the real parameters and buffers; tied parameters are one
    object under two names. metrics: by the names that the model gives them. outputs: what
    a module returns that computes no loss; `loss` is then the first of them. kept: about numbers
    that modules keep in Python, a sentence; None where they keep none.
    """

    graph: fx.Graph
    constants: Mapping[str, torch.Tensor]
    values: Mapping[str, torch.Tensor]
    parameters: Mapping[str, fx.Node]
    buffers: Mapping[str, fx.Node]
    inputs: Mapping[int, fx.Node]
    tangents: tuple[fx.Node, ...]
    loss: fx.Node
    metrics: Mapping[str, fx.Node]
    gradients: Mapping[str, fx.Node]
    new_buffers: Mapping[str, fx.Node]
    outputs: tuple[fx.Node, ...] = ()
    kept: str | None = None


def joint_graph(
    module: torch.nn.Module,
    inputs: Tensors,
    where: str,
    autocast: Autocast | None = None,
    decompose: bool = False,
    any_result: bool = False,
) -> JointGraph:
    """Raises CaptureError, with the user's source line where torch gives one.

    autocast: the module runs under it; its casts become operators, as the module's own casts do.
    decompose: into simpler operators (decompositions.py). any_result: what the module returns is
    no loss, but any number of tensors of any shape.
    Under torch.no_grad() the graph has a forward half alone.
    """
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    whole = module if autocast is None else UnderAutocast(module, autocast)
    prefix = "" if whole is module else f"{UnderAutocast.PREFIX}."

    def export() -> torch.export.ExportedProgram:
        with AnsweringSureDraws():
            return torch.export.export(whole, inputs, strict=False)

    try:
        with (
            _quiet_torch(),
            _unfused_lstm(module),
            noting_checkpoints(),
            keeping_own_functions(),
            refusing_scalers(where),
            attention_written_out() if decompose else contextlib.nullcontext(),
            contextlib.ExitStack() as stack,
        ):
            # Nobody needs the Python source of intermediate graphs.
            stack.enter_context(_use_lazy_graph_module(True))
            program, kept = exported_alone(export, where, prefix)
            exported = program.module(check_guards=False)
            _run_by_node(exported)
            form = program.call_spec.out_spec
            metrics = None if any_result else metrics_apart(exported, form, where)
            joint = aot_export_joint_with_descriptors(
                stack, exported, inputs, decompositions=decompositions() if decompose else None
            )
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(_explained(error, where)) from error
    with_conditionals(joint.graph_module)
    correct_statistics(joint.graph_module.graph)
    _note_modules(joint.graph_module.graph, prefix)
    values = {
        **dict(exported.named_parameters(remove_duplicate=False)),
        **dict(exported.named_buffers(remove_duplicate=False)),
    }
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    found = _with_roles(joint.graph_module, values, prefix, names, metrics, where)
    return replace(found, kept=kept)


def _run_by_node(module: fx.GraphModule) -> None:
    """Makes the parts under autocast or no_grad, which torch exports as modules of their own, run
    node by node as the whole does. Otherwise a trace loses what is noted on their nodes."""
    for node in module.graph.nodes:
        # Whenever a node is run, torch would copy its whole history.
        node.meta.pop("from_node", None)
        if str(node.target).startswith("wrap_with_"):
            for one in node.all_input_nodes:
                part = getattr(module, str(one.target), None)
                if isinstance(part, fx.GraphModule):
                    _run_by_node(part)
                    part.forward = fx.Interpreter(part).run


def _note_modules(graph: fx.Graph, prefix: str) -> None:
    """Notes the innermost module of each node, without a repeated call's number, as in `cell@3`."""
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        path = next((path for path, _ in reversed(stack.values())), "")
        node.meta[MODULE] = re.sub(r"@\d+", "", path).removeprefix(prefix)


def _with_roles(
    module: fx.GraphModule,
    values: Mapping[str, torch.Tensor],
    prefix: str,
    order: Sequence[str],
    metrics: Sequence[str] | None,
    where: str,
) -> JointGraph:
    """prefix: what exported names have before the module's own. order: that of the parameters.
    metrics: the names of the results behind the loss; None where no result is a loss."""
    from torch._functorch._aot_autograd import descriptors as d

    def named(role: Any) -> str:
        return str(role.target).removeprefix(prefix)

    parameters: dict[str, fx.Node] = {}
    buffers: dict[str, fx.Node] = {}
    inputs: dict[int, fx.Node] = {}
    tangents: list[fx.Node] = []
    for node in module.graph.find_nodes(op="placeholder"):
        role = node.meta["desc"]
        if isinstance(role, d.ParamAOTInput):
            parameters[named(role)] = node
        elif isinstance(role, d.BufferAOTInput):
            buffers[named(role)] = node
        elif isinstance(role, d.PlainAOTInput):
            inputs[role.idx] = node
        elif isinstance(role, d.TangentAOTInput):
            tangents.append(node)
        else:
            raise CaptureError(f"{where}: inputs of kind {type(role).__name__} are not supported")

    returned: list[Any] = []
    gradients: dict[str, fx.Node] = {}
    new_buffers: dict[str, fx.Node] = {}
    output = module.graph.output_node()
    results: Any = output.args[0]
    for value, role in zip(results, output.meta["desc"], strict=True):
        if isinstance(role, d.PlainAOTOutput):
            returned.append(value)
        elif isinstance(role, d.InputMutationAOTOutput):
            written: Any = role.mutated_input
            if not isinstance(written, d.BufferAOTInput):
                name = getattr(written, "target", None)
                what = f"parameter {name}" if name else f"input {written.idx}"
                raise CaptureError(
                    f"{where}: the step writes into {what} in place; inputs and parameters must be "
                    "left as they are (clone them first)"
                )
            new_buffers[named(written)] = value
        elif (
            value is not None
            and isinstance(role, d.GradAOTOutput)
            and isinstance(role.grad_of, d.ParamAOTInput)
        ):
            gradients[named(role.grad_of)] = value
    outputs = _tensors(returned, where) if metrics is None else ()
    loss, *others = outputs[:1] or returned
    named_metrics = dict(zip(metrics or (), others, strict=True))
    refuse_no_scalar(named_metrics, where)
    read = {str(node.target) for node in module.graph.find_nodes(op="get_attr") if node.users}
    return JointGraph(
        graph=module.graph,
        constants={name: getattr(module, name) for name in sorted(read)},
        values={name.removeprefix(prefix): value for name, value in values.items()},
        parameters={name: parameters[name] for name in order if name in parameters},
        buffers=buffers,
        inputs=inputs,
        tangents=tuple(tangents),
        loss=loss if outputs else _scalar_loss(loss, gradients, where),
        metrics=named_metrics,
        gradients=gradients,
        new_buffers=new_buffers,
        outputs=outputs,
    )


def _tensors(returned: Sequence[Any], where: str) -> tuple[fx.Node, ...]:
    """Without None, which models return in the place of what they did not compute."""
    for number, one in enumerate(returned):
        if not isinstance(one, fx.Node | None):
            raise CaptureError(
                f"{where}: output {number} is {one!r}, and no tensor: it would be the same for "
                "every batch; leave it out"
            )
    found = tuple(one for one in returned if one is not None)
    if not found:
        raise CaptureError(f"{where}: the model returns no tensor")
    return found


def _scalar_loss(loss: Any, gradients: Mapping[str, fx.Node], where: str) -> fx.Node:
    if not isinstance(loss, fx.Node):
        raise CaptureError(f"{where}: the loss is {loss!r}, and no tensor")
    value = loss.meta["val"]
    if value.numel() != 1:
        raise CaptureError(
            f"{where}: the step returns a tensor of shape {tuple(value.shape)}; it must return "
            "the scalar loss (give TrainingStep a `loss`, or reduce it in the model)"
        )
    if torch.is_grad_enabled() and not gradients:
        raise CaptureError(
            f"{where}: the loss depends on no trainable parameter: there is nothing to train"
        )
    return loss


def _unfused_lstm(module: torch.nn.Module) -> contextlib.AbstractContextManager[object]:
    """Makes torch run an LSTM as matrix products: the CPU's fused kernel gives other tensors than
    it declares, and makes a whole layer one operator, which cannot be spread."""
    if any(isinstance(part, torch.nn.LSTM) for part in module.modules()):
        return torch.backends.mkldnn.flags(enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _quiet_torch() -> Iterator[None]:
    """Suppresses the partial graphs and tracebacks that torch prints when an export fails: the
    error says it better. What the user's model prints goes to standard error, because standard
    output may carry events."""
    before, printed = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        logging.disable(before)


# By torch's error, what no fixed graph can hold.
_DATA_DEPENDENT = {
    "GuardOnDataDependentSymNode": "a branch on the values of a tensor",
    "DataDependentOutputException": "a Python number taken out of a tensor",
    "DynamicOutputShapeException": "a tensor whose shape depends on values",
}


def _explained(error: Exception, where: str) -> str:
    place = user_location_in(str(error), where)
    if place == where:
        place = user_location(error, where)
    kind = _DATA_DEPENDENT.get(type(error).__name__)
    if kind:
        return (
            f"{place}: {kind} (data-dependent control flow) cannot be part of a step that is fixed "
            "before it runs; use torch.where or masks, or move the decision out of the model"
        )
    return f"{place}: the step cannot be captured: {one_line(error)}"
