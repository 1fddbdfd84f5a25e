"""Counts the FLOPs and the memory traffic of captured operators, from which times are modelled.

FLOPs: matrix products, convolutions and attention, that of CPU kernels too, by the formulas of
torch.utils.flop_counter (a multiplication and an addition are two); a Fourier transform 5 n log2 n
per line of n; a reduction one per element that it reads; everything else one per element that it
writes, times a constant for transcendental functions. Traffic: every input read once and every
output written once, distinct elements only. Views, items of tuples, and values that exist before
the step cost nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from placewire.optimizer.capture.branches import Conditional
from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.nodes import is_tuple_item, target_name, tensors_in
from placewire.optimizer.capture.rewrite import PlaceableGraph
from placewire.optimizer.capture.updates import OptimizerChoice

aten = torch.ops.aten

# Operations per element: roughly those of polynomial approximations of these functions.
_PER_ELEMENT = {
    "exp": 8, "log": 8, "tanh": 12, "sigmoid": 10, "erf": 12, "gelu": 16, "gelu_backward": 24,
    "silu": 12, "silu_backward": 16, "sin": 12, "cos": 12, "pow": 12, "sqrt": 2, "rsqrt": 2,
    "_softmax": 12, "_safe_softmax": 12, "_log_softmax": 14, "_softmax_backward_data": 4,
    "_log_softmax_backward_data": 10, "native_layer_norm": 8, "native_layer_norm_backward": 14,
    "native_batch_norm": 8, "_native_batch_norm_legit": 8, "native_batch_norm_backward": 12,
    "native_dropout": 12, "bernoulli": 10, "rand": 10, "rand_like": 10,
}  # fmt: skip
_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "var", "var_mean", "max", "min", "argmax", "norm", "any", "all",
    "linalg_vector_norm", "norm_of_norms", "non_finite", "any_non_finite",
}  # fmt: skip
# Operators that read only as many elements of their first input as they write.
_GATHERS = {"embedding", "index", "_unsafe_index", "index_select", "gather"}
# Operators that read no tensor, but at most look at the shape of one.
_FILLS = {
    "zeros", "ones", "full", "empty", "scalar_tensor", "arange", "new_zeros", "new_ones",
    "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like",
}  # fmt: skip
# (operations, reads and writes) per element of a parameter.
_UPDATES = {"adam": (14, 7), "adamw": (14, 7), "sgd": (2, 3), "sgd with momentum": (4, 5)}
# The same where a kernel runs for each operation, for a parameter and for each tensor of its state.
_UNFUSED = (4, 6)
_SCALING = (1, 2)  # added to each update that makes a clipped or unscaled gradient


@dataclass(frozen=True)
class Cost:
    flops: int
    traffic_bytes: int


_NOTHING = Cost(0, 0)


def node_cost(node: fx.Node, placeable: PlaceableGraph, choice: OptimizerChoice) -> Cost:
    """Returns the cost of the operator in one step, in its captured layout."""
    if node.op == "call_module":
        written = placeable.writers[node.name]
        own = placeable.choice_of(choice, written)
        return _update_cost(placeable.parameters[written], own)
    if node.target is aten.copy_.default:
        return Cost(0, 2 * _bytes(_inputs(node)[0]))
    return _call_cost(node)


def _call_cost(node: fx.Node) -> Cost:
    if node.op != "call_function" or is_tuple_item(node) or _is_view(node):
        return _NOTHING
    if isinstance(node.target, Conditional):
        return max((_side_cost(side) for side in node.target.sides), key=lambda cost: cost.flops)
    return Cost(_flops(node), _traffic(node))


def _side_cost(side: fx.GraphModule) -> Cost:
    """Returns the cost of everything that one side of a conditional computes."""
    costs = [_call_cost(node) for node in side.graph.nodes]
    return Cost(sum(c.flops for c in costs), sum(c.traffic_bytes for c in costs))


def _update_cost(parameter: torch.Tensor, choice: OptimizerChoice) -> Cost:
    name = choice.name
    if name == "sgd" and choice.all_options["momentum"]:
        name = "sgd with momentum"
    if name in _UPDATES:
        operations, touches = _UPDATES[name]
    else:
        kept = 1 + math.ceil(choice.state_bytes(parameter) / max(parameter.nbytes, 1))
        operations, touches = _UNFUSED[0] * kept, _UNFUSED[1] * kept
    if choice.rescales:
        operations, touches = operations + _SCALING[0], touches + _SCALING[1]
    return Cost(operations * parameter.numel(), touches * parameter.nbytes)


def _name(node: fx.Node) -> str:
    """`mm` of aten.mm.default."""
    packet = getattr(node.target, "overloadpacket", None)
    return str(packet).removeprefix("aten.") if packet is not None else target_name(node)


def _is_view(node: fx.Node) -> bool:
    return bool(getattr(node.target, "is_view", False)) or _name(node) == "_unsafe_view"


def _flops(node: fx.Node) -> int:
    packet: Any = getattr(node.target, "overloadpacket", None)
    name, value = _name(node), node.meta.get("val")
    given: Any = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    arguments, options = given
    if packet in flop_registry:
        return int(flop_registry[packet](*arguments, **options, out_val=value))
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return int(sdpa_flop_count(*(x.shape for x in arguments[:3])))
    if name == "_scaled_dot_product_flash_attention_for_cpu_backward":
        return int(sdpa_backward_flop_count(*(x.shape for x in arguments[:4])))
    if name.startswith("_fft_"):
        points = math.prod(arguments[0].shape[d] for d in arguments[1])
        return int(5 * arguments[0].numel() * math.log2(max(points, 2)))
    if name in _FILLS:
        return 0
    return _elements_touched(node, name) * _PER_ELEMENT.get(name, 1)


def _elements_touched(node: fx.Node, name: str) -> int:
    """Returns the elements of the first output, times the window of a pooling; of a reduction the
    elements of its largest tensor."""
    first = next(tensors_in(node.meta.get("val")), None)
    written = 0 if first is None else first.numel()
    if name in _REDUCTIONS:
        return max([written, *(value.numel() for value in _inputs(node))])
    kernel: Any = node.args[1] if "pool" in name and "backward" not in name else None
    return written * math.prod(kernel) if isinstance(kernel, list | tuple) else written


def _traffic(node: fx.Node) -> int:
    name = _name(node)
    written = sum(_bytes(value) for value in tensors_in(node.meta.get("val")))
    if name in _GATHERS:
        indices = sum(_bytes(value) for value in _inputs(node)[1:])
        return 2 * written + indices
    return written + sum(_bytes(value) for value in _read(node, name))


def _read(node: fx.Node, name: str) -> list[torch.Tensor]:
    inputs = [] if name in _FILLS or name == "rand_like" else _inputs(node)
    if name != "convolution_backward":
        return inputs
    # The gradient of the input does not need the input, and that of the weight not the weight.
    mask: Any = node.args[-1]
    unread = {None if mask[1] or mask[2] else node.args[1], None if mask[0] else node.args[2]}
    return [s.meta["val"] for s in node.all_input_nodes if s not in unread and _is_tensor(s)]


def _inputs(node: fx.Node) -> list[torch.Tensor]:
    """Returns the distinct input tensors, in the order of the arguments."""
    return [source.meta["val"] for source in node.all_input_nodes if _is_tensor(source)]


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _bytes(value: torch.Tensor) -> int:
    return Layout.of(value).wire_bytes
