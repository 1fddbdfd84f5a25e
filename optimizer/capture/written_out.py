"""Writes the update of each parameter out as elementary operators.

The arithmetic is that of torch.optim with foreach=False and fused=False, operation by operation.
What PyTorch computes there of Python numbers (bias corrections, the size of the step) are operators
on scalars of float64, and each hyperparameter of an update is an operator, as each is in the graphs
of TensorFlow. What torch.optim keeps for a parameter are buffers of the step. Some kernels of
torch.optim do several operations at once (`lerp_`, `addcmul_`), and may round once where two
operators round twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.nodes import MODULE, call
from placewire.optimizer.capture.updates import OptimizerChoice

aten = torch.ops.aten

# No buffer of a module can have a name that begins so: it has an empty part.
_STATE = "optimizer.."


@dataclass(frozen=True)
class WrittenOut:
    """joint: with the optimizer state as buffers, and their new values. new: by parameter name its
    new value."""

    joint: JointGraph
    new: Mapping[str, fx.Node]


def is_state(buffer: str) -> bool:
    """Whether a buffer of this name is a part of the optimizer's state."""
    return buffer.startswith(_STATE)


def refuse_what_is_not_written_out(choice: OptimizerChoice) -> None:
    """Raises CaptureError."""
    what = None
    if choice.foreign is not None:
        what = f"{choice.name} is a class, whose arithmetic is its own; give adam, adamw or sgd"
    elif choice.scaler is not None:
        what = "a scaler skips whole updates, which no operators on tensors do; drop it"
    elif choice.schedule != LearningRateSchedule():
        what = "a schedule depends on the number of the step, which the graph has not; drop it"
    else:
        each = (choice.options, *({**choice.options, **one.options} for one in choice.groups))
        if any(one.get("momentum") and one.get("dampening") for one in each):
            what = "sgd dampens no first step, and the graph is that of every step; drop dampening"
    if what is not None:
        raise CaptureError(f"--decompose writes the update out as operators: {what}")


def write_out(
    joint: JointGraph,
    gradients: Mapping[str, fx.Node],
    coefficient: fx.Node | None,
    choice_of: Callable[[str], OptimizerChoice],
) -> WrittenOut:
    """Appends to the graph. gradients: by name of the trained parameter. coefficient: of clipping.
    choice_of: from the name of a parameter to what it is updated by."""
    buffers, new_buffers, values = {**joint.buffers}, {**joint.new_buffers}, {**joint.values}
    new = dict[str, fx.Node]()
    for name, gradient in gradients.items():
        choice = choice_of(name)
        one = _Update(name, joint.parameters[name], joint.values[name].detach(), choice)
        clipped = coefficient and one.by(aten.mul.Tensor, gradient, coefficient)
        taken = clipped or gradient
        new[name] = one.sgd(taken) if choice.name == "sgd" else one.adam(taken)
        buffers |= one.buffers
        new_buffers |= one.new_buffers
        values |= one.values
    joint = replace(joint, buffers=buffers, new_buffers=new_buffers, values=values)
    return WrittenOut(joint, new)


class _Update:
    """Appends the operators of one parameter's update; operands are nodes, or names of
    hyperparameters."""

    def __init__(
        self, name: str, parameter: fx.Node, value: torch.Tensor, choice: OptimizerChoice
    ) -> None:
        self.name, self.parameter, self.value, self.choice = name, parameter, value, choice
        self.numbers: Mapping[str, Any] = {"one": 1.0, "lr": choice.lr, **choice.all_options}
        self.scalars: dict[tuple[str, torch.dtype], fx.Node] = {}
        self.buffers: dict[str, fx.Node] = {}
        self.new_buffers: dict[str, fx.Node] = {}
        self.values: dict[str, torch.Tensor] = {}

    def adam(self, gradient: fx.Node) -> fx.Node:
        """As torch.optim.adam._single_tensor_adam. Returns the parameter's new value."""
        add, sub, mul, div = (op.Tensor for op in (aten.add, aten.sub, aten.mul, aten.div))
        parameter = self.parameter
        step = self.call(add, self.steps(), self.scalar("one", torch.float32))
        self.keep("step", step)
        if self.numbers["weight_decay"] and self.choice.name == "adamw":
            decay = self.call(mul, "lr", "weight_decay")
            parameter = self.by(mul, parameter, self.call(sub, "one", decay))
        elif self.numbers["weight_decay"]:
            gradient = self.call(add, gradient, self.by(mul, parameter, "weight_decay"))
        average = self.state("exp_avg")
        difference = self.call(sub, gradient, average)
        moved = self.by(mul, difference, self.call(sub, "one", "beta1"))
        average = self.call(add, average, moved)
        self.keep("exp_avg", average)
        squares = self.by(mul, self.state("exp_avg_sq"), "beta2")
        part = self.by(mul, gradient, self.call(sub, "one", "beta2"))
        squares = self.call(add, squares, self.call(mul, part, gradient))
        self.keep("exp_avg_sq", squares)
        power = aten.pow.Tensor_Tensor
        correction = self.call(sub, "one", self.call(power, "beta1", step))
        of_squares = self.call(sub, "one", self.call(power, "beta2", step))
        size = self.call(aten.neg.default, self.call(div, "lr", correction))
        root = self.call(aten.sqrt.default, squares)
        root = self.by(div, root, self.call(aten.sqrt.default, of_squares))
        root = self.by(add, root, "eps")
        return self.call(add, parameter, self.call(div, self.by(mul, average, size), root))

    def sgd(self, gradient: fx.Node) -> fx.Node:
        """As torch.optim.sgd._single_tensor_sgd. Returns the parameter's new value."""
        add, mul = aten.add.Tensor, aten.mul.Tensor
        if self.numbers["weight_decay"]:
            gradient = self.call(add, gradient, self.by(mul, self.parameter, "weight_decay"))
        if self.numbers["momentum"]:
            buffer = self.by(mul, self.state("momentum_buffer"), "momentum")
            buffer = self.call(add, buffer, gradient)
            self.keep("momentum_buffer", buffer)
            ahead = self.by(mul, buffer, "momentum") if self.numbers["nesterov"] else None
            gradient = buffer if ahead is None else self.call(add, gradient, ahead)
        size = self.call(aten.neg.default, "lr")
        return self.call(add, self.parameter, self.by(mul, gradient, size))

    def by(self, target: Callable[..., Any], tensor: fx.Node, number: fx.Node | str) -> fx.Node:
        """As call(); the result has the tensor's type, as where torch.optim has a Python number.
        Beside a tensor without dimensions the type of the number would count as much."""
        node = self.scalar(number) if isinstance(number, str) else number
        dtype = tensor.meta["val"].dtype
        if not self.value.dim() and node.meta["val"].dtype != dtype:
            node = self.call(aten._to_copy.default, node, dtype=dtype)
        return self.call(target, tensor, node)

    def call(self, target: Callable[..., Any], *operands: fx.Node | str, **options: Any) -> fx.Node:
        nodes = tuple(self.scalar(one) if isinstance(one, str) else one for one in operands)
        packet: Any = target
        kind = packet.overloadpacket.__name__
        return self._of_module(call(target, nodes, f"update_{kind}_{self.name}", **options))

    def scalar(self, name: str, dtype: torch.dtype = torch.float64) -> fx.Node:
        """Returns the operator that makes the hyperparameter."""
        if (name, dtype) not in self.scalars:
            graph, device = self.parameter.graph, self.value.device
            node = graph.create_node(
                "call_function",
                aten.scalar_tensor.default,
                (float(self.numbers[name]),),
                {"dtype": dtype, "device": device},
                name=f"update_{name}_{self.name}".replace(".", "_"),
            )
            with self.parameter.meta["val"].fake_mode:
                node.meta["val"] = torch.empty((), dtype=dtype, device=device)
            self.scalars[name, dtype] = self._of_module(node)
        return self.scalars[name, dtype]

    def state(self, key: str) -> fx.Node:
        """Returns the buffer that torch.optim calls by this key, which is as the parameter."""
        like = self.parameter.meta["val"]
        with like.fake_mode:
            traced = torch.empty_like(like)
        return self._held(key, traced, torch.zeros_like(self.value))

    def steps(self) -> fx.Node:
        """Returns the buffer that counts steps, a float32 as in torch.optim."""
        device = self.value.device
        with self.parameter.meta["val"].fake_mode:
            traced = torch.empty((), dtype=torch.float32, device=device)
        return self._held("step", traced, torch.zeros((), dtype=torch.float32, device=device))

    def _held(self, key: str, traced: torch.Tensor, value: torch.Tensor) -> fx.Node:
        name = self._buffer(key)
        with self.parameter.graph.inserting_before(self.parameter):
            node = self.parameter.graph.placeholder(name.replace(".", "_"))
        node.meta["val"] = traced
        self.values[name], self.buffers[name] = value, self._of_module(node)
        return node

    def keep(self, key: str, value: fx.Node) -> None:
        self.new_buffers[self._buffer(key)] = value

    def _buffer(self, key: str) -> str:
        return f"{_STATE}{key}..{self.name}"

    def _of_module(self, node: fx.Node) -> fx.Node:
        node.meta[MODULE] = self.name.rpartition(".")[0]
        return node
