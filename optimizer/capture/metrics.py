"""Finds the scalars that a step reports beside its loss, as accuracy, in what its model returns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_unflatten

from placewire.optimizer.capture.errors import CaptureError

aten = torch.ops.aten

# Under which the loss itself is reported.
LOSS = "loss"
MOST_METRICS = 32
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@-]{0,63}")
_FORM = 'the scalar loss, or the loss and a dictionary of scalars: `loss, {"accuracy": accuracy}`'


def metrics_apart(exported: fx.GraphModule, form: TreeSpec, where: str) -> tuple[str, ...]:
    """Returns the names of the metrics, in the order of the exported module's results behind the
    loss. Rewrites the module so that none has a gradient, or memory that a step may overwrite.

    form: that of what the module returns. Raises CaptureError.
    """
    names = _names(tree_unflatten(range(form.num_leaves), form), where)
    if not names:
        return ()
    output = exported.graph.output_node()
    results: Any = output.args[0]
    loss, *values = results
    copies = []
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, fx.Node):
            raise CaptureError(
                f"{where}: metric {name!r} is {value!r}, and no tensor: it would stay the same in "
                "every step; give a tensor with one element"
            )
        with exported.graph.inserting_before(output):
            detached = exported.graph.call_function(aten.detach.default, (value,))
            copies.append(exported.graph.call_function(aten.clone.default, (detached,)))
    output.args = ((loss, *copies),)
    exported.recompile()
    return names


def refuse_no_scalar(metrics: Mapping[str, fx.Node], where: str) -> None:
    """Raises CaptureError."""
    for name, node in metrics.items():
        value = node.meta["val"]
        if value.numel() != 1:
            raise CaptureError(
                f"{where}: metric {name!r} is of shape {tuple(value.shape)}; a metric is one "
                "number: reduce it, for example by mean()"
            )
        if value.is_complex():
            raise CaptureError(f"{where}: metric {name!r} is complex; give its real part or abs()")


def loss_in(result: Any) -> torch.Tensor:
    """What a model or its loss returns, without metrics."""
    loss: torch.Tensor = result[0] if isinstance(result, tuple | list) else result
    return loss


def _names(form: Any, where: str) -> tuple[str, ...]:
    """form: as what the module returns, with the number of each value in its place."""
    if isinstance(form, int):
        return ()
    try:
        loss, metrics = form
        is_right = loss == 0 and isinstance(metrics, Mapping)
    except (TypeError, ValueError):
        is_right = False
    if not is_right:
        raise CaptureError(f"{where}: the step returns {_described(form)}; it must return {_FORM}")
    for name, value in metrics.items():
        if not isinstance(value, int):
            raise CaptureError(
                f"{where}: metric {name!r} is a {type(value).__name__}; give a tensor with one "
                "element"
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise CaptureError(
                f"{where}: a metric is named {name!r}; give a name of at most 64 letters, digits "
                "and the characters _./@-"
            )
        if name == LOSS:
            raise CaptureError(
                f"{where}: a metric is named 'loss', as the loss itself is; give another name"
            )
    if len(metrics) > MOST_METRICS:
        raise CaptureError(
            f"{where}: the step returns {len(metrics)} metrics; at most {MOST_METRICS} are reported"
        )
    return tuple(metrics)


def _described(form: Any) -> str:
    if isinstance(form, tuple | list) and all(isinstance(value, int) for value in form):
        return f"{len(form)} values"
    return f"a {type(form).__name__}"
