"""Finds what a step computes of its whole batch, so that micro-batches would change what it learns.

The mean of a loss over equal micro-batches is the mean over the batch, but for rounding. The mean
and variance by which a batch norm normalises are not, nor is what a step writes into a buffer, and
a loss may be no mean over samples: it may add them, or hold each against all others.
"""

from __future__ import annotations

import torch
from torch import fx

from placewire.optimizer.capture.errors import one_line
from placewire.optimizer.capture.evaluation_mode import in_evaluation_mode
from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.metrics import loss_in
from placewire.optimizer.capture.nodes import MODULE, target_name
from placewire.optimizer.capture.protocol import ModelWithLoss, Tensors, TrainingStep

# Parts of the names of operators that normalise by given means, and of those that go back.
_NOT_OVER_THE_BATCH = ("no_training", "no_update", "backward")
# It is a batch norm over a batch of one, in which each sample's channels are channels of their own.
_INSTANCE_NORMS = "torch.nn.modules.instancenorm."
# Rounding is below this part of a loss, or below so many of the last bits of its type.
_ROUNDING, _LAST_BITS = 1e-5, 8


def what_needs_the_whole_batch(joint: JointGraph) -> str | None:
    """The first such thing, as the subject of a sentence; None where there is none."""
    for node in joint.graph.nodes:
        if _normalises_over_the_batch(node):
            return f"{node.meta.get(MODULE) or 'the model'} normalises over the batch"
    for name in joint.new_buffers:
        return f"the step writes buffer {name}"
    return None


def what_the_loss_needs(step: TrainingStep, batch: int) -> str | None:
    """Computes the loss of the first batch, and those of its parts, in evaluation mode, where
    dropout draws nothing. Returns why the loss is not the mean of these, as the subject of a
    sentence; None where it is, where the batch has no parts, and where memory is lacking."""
    parts = next((k for k in range(2, batch + 1) if batch % k == 0), None)
    inputs = step.batches(0)
    if parts is None or any(x.dim() == 0 or x.shape[0] != batch for x in inputs):
        return None
    module = step.model if step.loss is None else ModelWithLoss(step.model, step.loss)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    try:
        with in_evaluation_mode(module):
            pieces = [x.chunk(parts) for x in inputs]
            each = [_loss(module, tuple(one[m] for one in pieces)) for m in range(parts)]
            (whole, last_bit), (again, _) = _loss(module, inputs), _loss(module, inputs)
        cut = sum(loss for loss, _ in each) / parts
    except (torch.OutOfMemoryError, MemoryError):
        return None
    except Exception as error:  # A model may do something else in evaluation mode, or fail.
        return f"the loss cannot be computed in evaluation mode ({one_line(error)})"
    finally:
        with torch.no_grad():
            for name, value in module.named_buffers():
                if name in buffers and buffers[name].shape == value.shape:
                    value.copy_(buffers[name])
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # The profile counts what the process has reserved.
    rounding = max(_ROUNDING, _LAST_BITS * last_bit) * max(abs(whole), abs(cut))
    if abs(whole - again) > rounding:
        return "the loss of the same batch is another one each time, in evaluation mode, too"
    if abs(whole - cut) <= rounding:
        return None
    return f"the loss of a batch, {whole:.6g}, is not the mean of its parts' losses, {cut:.6g}"


def _loss(module: torch.nn.Module, inputs: Tensors) -> tuple[float, float]:
    """Returns the loss, and the last bit of 1 in its type."""
    with torch.no_grad():
        found = loss_in(module(*inputs))
        return float(found.item()), torch.finfo(found.dtype).eps


def _normalises_over_the_batch(node: fx.Node) -> bool:
    if node.op != "call_function" or "batch_norm" not in (name := target_name(node)):
        return False
    if any(part in name for part in _NOT_OVER_THE_BATCH):
        return False
    stack = node.meta.get("nn_module_stack") or {}
    if any(kind.startswith(_INSTANCE_NORMS) for _, kind in stack.values()):
        return False
    schema = getattr(node.target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name in ("training", "train"):
            given = node.args[position] if position < len(node.args) else None
            return bool(node.kwargs.get(argument.name, given))
    return True
