"""Refuses steps that no rank could run, before anything is placed, with the user's source line.

Without this, such a step would fail or train wrongly only once it runs on the ranks.
"""

from __future__ import annotations

import torch
from torch import fx

from placewire.optimizer.capture.branches import Conditional
from placewire.optimizer.capture.errors import CaptureError, user_location_in
from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.nodes import is_random

# These kernels return other tensors than they declare, so that a graph of them cannot be run.
_UNDECLARED = ("aten.mkldnn_rnn_layer.", "aten.mkldnn_rnn_layer_backward.")


def refuse_what_cannot_run(joint: JointGraph, where: str) -> None:
    """Raises CaptureError."""
    for node in joint.graph.nodes:
        if node.op == "call_function":
            _refuse_operator(node, where)
    _refuse_shared_memory(joint, where)
    for name in joint.gradients:
        if not joint.values[name].is_floating_point():
            raise CaptureError(
                f"{where}: parameter {name} is of type {joint.values[name].dtype}, and the "
                "optimizers update floating-point parameters; hold real and imaginary part in two "
                "parameters and join them with torch.complex"
            )


def source_of(node: fx.Node, otherwise: str) -> str:
    """Returns `file:line: source` of the user's line that made the node, else its module behind
    `otherwise`, or `otherwise` alone; and the line of a package behind it (user_location)."""
    modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    names = [f"{kind} {path}".strip() for path, kind in modules.values()]
    return user_location_in(
        node.stack_trace or "", f"{otherwise}: {names[-1]}" if names else otherwise
    )


def _refuse_operator(node: fx.Node, where: str) -> None:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        raise CaptureError(
            f"{source_of(node, where)}: {node.target} holds graphs of its own, which cannot be "
            "placed; write the loop out (torch.cond can be placed)"
        )
    if isinstance(node.target, Conditional):
        _refuse_in_a_side(node, node.target, where)
    if str(node.target).startswith(_UNDECLARED):
        raise CaptureError(
            f"{source_of(node, where)}: torch's {node.target} cannot be run from a graph; use "
            "torch.nn.LSTM, which is captured as matrix products"
        )
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
        raise CaptureError(
            f"{source_of(node, where)}: {node.target} gives a tensor of layout {value.layout}, "
            "which has no fixed size; use dense tensors (for an embedding: sparse=False)"
        )


def _refuse_in_a_side(node: fx.Node, conditional: Conditional, where: str) -> None:
    """Refuses loops, and random numbers: the backward pass computes the side again, and would draw
    other ones."""
    for inner in conditional.nodes():
        if is_random(inner):
            raise CaptureError(
                f"{source_of(node, where)}: {inner.target} draws random numbers inside torch.cond, "
                "whose side is computed again in the backward pass; draw them outside"
            )
        if isinstance(inner.target, torch._ops.HigherOrderOperator):
            raise CaptureError(
                f"{source_of(node, where)}: {inner.target} inside torch.cond holds graphs of its "
                "own, which cannot be placed; write the loop out"
            )


def _refuse_shared_memory(joint: JointGraph, where: str) -> None:
    """Refuses distinct objects in one memory: in a single process a step that writes one also
    writes the other, but on two servers they would drift apart. Tied parameters are one object."""
    written = {*joint.gradients, *joint.new_buffers}
    holders: dict[int, dict[int, str]] = {}
    for name, value in joint.values.items():
        holders.setdefault(value.untyped_storage()._cdata, {}).setdefault(id(value), name)
    for names in holders.values():
        if len(names) > 1 and written & set(names.values()):
            one, other, *_ = names.values()
            raise CaptureError(
                f"{where}: {one} and {other} share memory but are two objects; to tie them make "
                "them one (`a.weight = b.weight`), else give each memory of its own (clone)"
            )
