"""Finds what a step computes of its whole batch, so that micro-batches would change what it learns.

The mean of a loss over equal micro-batches is the mean over the batch, but for rounding. The mean
and variance by which a batch norm normalises are not, nor is what a step writes into a buffer.
"""

from __future__ import annotations

from torch import fx

from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.nodes import MODULE, target_name

# Parts of the names of operators that normalise by given means, and of those that go back.
_NOT_OVER_THE_BATCH = ("no_training", "no_update", "backward")
# It is a batch norm over a batch of one, in which each sample's channels are channels of their own.
_INSTANCE_NORMS = "torch.nn.modules.instancenorm."


def what_needs_the_whole_batch(joint: JointGraph) -> str | None:
    """The first such thing, as the subject of a sentence; None where there is none."""
    for node in joint.graph.nodes:
        if _normalises_over_the_batch(node):
            return f"{node.meta.get(MODULE) or 'the model'} normalises over the batch"
    for name in joint.new_buffers:
        return f"the step writes buffer {name}"
    return None


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
