"""Captures the forward pass alone: what the model computes of a batch in evaluation mode."""

from __future__ import annotations

from dataclasses import replace

import torch

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.evaluation_mode import in_evaluation_mode
from placewire.optimizer.capture.joint import JointGraph, joint_graph
from placewire.optimizer.capture.protocol import Tensors, TrainingStep
from placewire.optimizer.capture.rewrite import without_identity_views
from placewire.optimizer.capture.updates import OptimizerChoice


def forward_alone(step: TrainingStep) -> TrainingStep:
    """Returns the step without its loss and without the targets, which are the last input. Where
    the model itself returns the loss, this stays what it returns."""
    if step.loss is None:
        return replace(step, validation=None)

    def without_target(inputs: Tensors) -> Tensors:
        return inputs[:-1]

    return replace(
        step,
        loss=None,
        validation=None,
        example_inputs=without_target(step.example_inputs),
        batches=lambda number: without_target(step.batches(number)),
        buckets={name: without_target(one) for name, one in step.buckets.items()},
    )


def in_half_precision(step: TrainingStep) -> TrainingStep:
    """Returns the step with its model, which is changed, and its inputs in float16; whole numbers
    stay what they are."""

    def halved(inputs: Tensors) -> Tensors:
        return tuple(one.half() if one.is_floating_point() else one for one in inputs)

    # Module.half() swaps tensors, which those without memory refuse. Tied parameters stay one.
    made: dict[torch.Tensor, torch.nn.Parameter] = {}
    for module in step.model.modules():
        for name, one in module._parameters.items():
            if one is not None and one.is_floating_point():
                if one not in made:
                    made[one] = torch.nn.Parameter(one.detach().half())
                module._parameters[name] = made[one]
        for name, held in module._buffers.items():
            if held is not None and held.is_floating_point():
                module._buffers[name] = held.half()
    return replace(
        step,
        example_inputs=halved(step.example_inputs),
        batches=lambda number: halved(step.batches(number)),
        buckets={name: halved(one) for name, one in step.buckets.items()},
    )


def inference_graph(
    module: torch.nn.Module, example: Tensors, where: str, options: CaptureOptions
) -> JointGraph:
    """Raises CaptureError."""
    with in_evaluation_mode(module), torch.no_grad():
        joint = without_identity_views(
            joint_graph(
                module,
                example,
                f"{where} in evaluation mode",
                options.autocast,
                options.decompose,
                any_result=True,
            )
        )
    _refuse_what_is_only_passed_on(joint, where)
    return joint


def _refuse_what_is_only_passed_on(joint: JointGraph, where: str) -> None:
    """Raises CaptureError where an output is computed by no operator."""
    given = {
        **{node: f"parameter {name}" for name, node in joint.parameters.items()},
        **{node: f"buffer {name}" for name, node in joint.buffers.items()},
        **{node: f"input {position}" for position, node in joint.inputs.items()},
    }
    for number, node in enumerate(joint.outputs):
        if node.op != "call_function":
            raise CaptureError(
                f"{where}: output {number} is {given.get(node, 'a constant')} as it is, which the "
                "model only passes on: leave it out of what the model returns"
            )


def refuse_what_is_of_training(options: CaptureOptions) -> None:
    """Raises CaptureError."""
    given = {
        "accumulate": options.accumulate > 1,
        "shards": options.shards > 1,
        "recompute": options.recompute != "none",
        "optimizer": options.optimizer != OptimizerChoice(),
    }
    for name, is_given in given.items():
        if is_given:
            raise CaptureError(
                f"--inference: the forward pass alone has no gradients and no update, and "
                f"--{name} is about these; drop --{name}"
            )
