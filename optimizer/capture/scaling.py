"""Scales the loss and skips updates, as torch.amp.GradScaler does with one optimizer.

The scale and the count of steps since it changed are buffers of the step. The scale multiplies the
gradient that the backward half begins with, once for all micro-batches. Whether all gradients are
finite is a reduction over all ranks, like the norm by which they are clipped; every update takes
its result, and does nothing where one is not. The buffers are then set by torch's own function.

torch's fused optimizers unscale gradients themselves, unless these are clipped before; for others
an operator of each gradient does. Both use torch's kernels, so that the last bits are torch's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.gradient_scaler import GradientScaler
from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.layer_scalars import layer_scalars
from placewire.optimizer.capture.nodes import call
from placewire.optimizer.capture.updates import OptimizerChoice

# No buffer of a module can have such names, which have an empty part.
SCALE, GROWTH_TRACKER = "scaler..scale", "scaler..growth_tracker"
# What torch's GradScaler.state_dict() calls them.
SAVED_AS = {SCALE: "scale", GROWTH_TRACKER: "_growth_tracker"}
# The metrics of every step that scales: the scale of its loss, and 1 where its update was skipped.
SCALE_METRIC, SKIPPED_METRIC = "scale", "skipped"


@dataclass(frozen=True)
class Scaling:
    """joint: with new values of the scaler's buffers. gradients: what updates take, and clipping
    before them. operands: what else every update takes, by the name of its argument. metrics: what
    is reported."""

    joint: JointGraph
    gradients: Mapping[str, fx.Node]
    operands: Mapping[str, fx.Node]
    metrics: Mapping[str, fx.Node]


def scale_loss(joint: JointGraph, scaler: GradientScaler, micro_batches: int) -> JointGraph:
    """Rewrites the graph so that the loss's own gradient is the scale, or its share in the mean.
    Returns it with the scaler's buffers."""
    graph, device = joint.graph, joint.loss.meta["val"].device
    values = {
        SCALE: torch.full((), scaler.init_scale, dtype=torch.float32, device=device),
        GROWTH_TRACKER: torch.zeros((), dtype=torch.int32, device=device),
    }
    first_operator = next(node for node in graph.nodes if node.op != "placeholder")
    buffers: dict[str, fx.Node] = {}
    with graph.inserting_before(first_operator):
        for name, value in values.items():
            buffers[name] = graph.placeholder(name.replace(".", "_"))
            with joint.loss.meta["val"].fake_mode:
                buffers[name].meta["val"] = torch.empty((), dtype=value.dtype, device=device)
        # The buffer is overwritten in the same step.
        scale = call(torch.ops.aten.clone.default, (buffers[SCALE],), f"metric_{SCALE_METRIC}")
        for node in joint.tangents:
            value = node.meta["val"]
            arguments = (scale, value.dtype, list(value.shape), micro_batches)
            node.replace_all_uses_with(call(loss_gradient, arguments, "loss_gradient"))
    return replace(
        joint, buffers={**joint.buffers, **buffers}, values={**joint.values, **values}, tangents=()
    )


def unscale(
    joint: JointGraph, gradients: Mapping[str, fx.Node], choice: OptimizerChoice
) -> Scaling | None:
    """joint: whose loss is scaled, at the end of its graph; None where the choice scales nothing.
    gradients: by parameter name. Raises CaptureError where torch's GradScaler would refuse one."""
    if (scaler := choice.scaler) is None:
        return None
    _refuse_what_does_not_scale(gradients, choice)
    (scale,) = joint.buffers[SCALE].users
    checks = layer_scalars(gradients, non_finite, (), "found_inf")
    found_inf = call(any_non_finite, (checks,), "found_inf")
    state = (scale, joint.buffers[GROWTH_TRACKER], found_inf, *scaler.settings.values())
    new = {
        SCALE: call(new_scale, state, "new_scale"),
        GROWTH_TRACKER: call(new_growth_tracker, state, "new_growth_tracker"),
    }
    operands = {"found_inf": found_inf}
    if choice.unscales:
        operands["scale"] = scale
    else:
        inverse = call(inverse_of, (scale,), "inverse_scale")
        gradients = {
            name: call(unscaled, (gradient, inverse), f"unscaled_{name}")
            for name, gradient in gradients.items()
        }
    return Scaling(
        replace(joint, new_buffers={**joint.new_buffers, **new}),
        gradients,
        operands,
        {SCALE_METRIC: scale, SKIPPED_METRIC: found_inf},
    )


def _refuse_what_does_not_scale(gradients: Mapping[str, fx.Node], choice: OptimizerChoice) -> None:
    for name, gradient in gradients.items():
        if gradient.meta["val"].dtype == torch.float16 and not choice.unscales:
            by = "clip_norm" if choice.clip_norm is not None else f"optimizer {choice.name}"
            raise CaptureError(
                f"job.optimizer.scaler: parameter {name} is of float16, and {by} needs its "
                "gradient unscaled, of which float16 would lose the small values, so that torch "
                "refuses it; keep parameters in float32 and give job.autocast: fp16"
            )


def loss_gradient(
    scale: torch.Tensor, dtype: torch.dtype, shape: list[int], micro_batches: int
) -> torch.Tensor:
    """Returns the gradient of a micro-batch's loss, which has that type and shape."""
    return (scale.to(dtype) / micro_batches).view(shape)


def non_finite(gradient: torch.Tensor) -> torch.Tensor:
    """Returns float32[]: 1 where the gradient has an infinite element or one that is no number."""
    if not gradient.numel():
        return torch.zeros((), device=gradient.device)
    least, most = torch.aminmax(gradient)  # One that is no number would be both.
    return (~(least.isfinite() & most.isfinite())).to(torch.float32)


def any_non_finite(checks: list[torch.Tensor]) -> torch.Tensor:
    """checks: float32[k] each. Returns their maximum, float32[]."""
    return torch.cat(checks).amax()


def inverse_of(scale: torch.Tensor) -> torch.Tensor:
    return scale.double().reciprocal().float()


def unscaled(gradient: torch.Tensor, inverse_scale: torch.Tensor) -> torch.Tensor:
    """Returns a new tensor: others may still read the gradient, or send it."""
    own = gradient.clone()
    found_inf = torch.zeros((), device=gradient.device)
    torch._amp_foreach_non_finite_check_and_unscale_([own], found_inf, inverse_scale)
    return own


def new_scale(*state: Any) -> torch.Tensor:
    """Returns what GradScaler.update() makes of the scale. state: as of _updated()."""
    return _updated(*state)[0]


def new_growth_tracker(*state: Any) -> torch.Tensor:
    """Returns what GradScaler.update() makes of the number of steps since the scale changed."""
    return _updated(*state)[1]


def _updated(
    scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    own = scale.clone(), growth_tracker.clone()
    torch._amp_update_scale_(*own, found_inf, growth_factor, backoff_factor, growth_interval)
    return own
