"""Gives the statistics of a normalisation the type that kernels of processors give them.

Where a normalisation of bfloat16 or float16 has weights or averages in float32, as under autocast,
its mean and reciprocal deviation are float32, and the gradient that group normalisation gives back
is of the smaller type. Torch's tracing says otherwise (torch 2.13): a message would not have the
bytes that were promised.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

aten = torch.ops.aten

NORMALISATIONS = (
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
)
_HALF = (torch.bfloat16, torch.float16)
_PASSED_ON = (aten.detach.default, aten.alias.default)
# Where statistics are in the tuple that the operator gives.
_STATISTICS = (1, 2)


def correct_statistics(graph: fx.Graph) -> None:
    """Rewrites the values that were traced; a CUDA device's are left as they are."""
    for target in NORMALISATIONS:
        for node in graph.find_nodes(op="call_function", target=target):
            if _half_with_float32(node) is not None:
                _set_type(node, _STATISTICS, torch.float32)
    for node in graph.find_nodes(
        op="call_function", target=aten.native_group_norm_backward.default
    ):
        if (half := _half_with_float32(node)) is not None:
            _set_type(node, (0,), half)


def _half_with_float32(node: fx.Node) -> torch.dtype | None:
    """The type of what the node normalises on a processor, where other inputs are float32."""
    values = [one.meta.get("val") for one in node.all_input_nodes]
    given, *others = [value for value in values if isinstance(value, torch.Tensor)]
    mixed = any(one.dtype == torch.float32 for one in others)
    return given.dtype if given.dtype in _HALF and mixed and given.device.type == "cpu" else None


def _set_type(node: fx.Node, positions: tuple[int, ...], dtype: torch.dtype) -> None:
    found = list(node.meta["val"])
    for k in positions:
        with found[k].fake_mode:
            found[k] = torch.empty_like(found[k], dtype=dtype)
    node.meta["val"] = tuple(found)
    for item in node.users:
        if item.target is operator.getitem and item.args[1] in positions:
            _set_value(item, found[int(item.args[1])])  # type: ignore[arg-type]


def _set_value(node: fx.Node, value: torch.Tensor) -> None:
    """Also of what only passes the value on."""
    node.meta["val"] = value
    for user in node.users:
        if user.target in _PASSED_ON:
            with value.fake_mode:  # type: ignore[attr-defined]
                _set_value(user, user.target(value))
