"""Gives the statistics of a normalisation the type that kernels of processors give them.

Where a normalisation of bfloat16 or float16 has weights or averages in float32, as under autocast,
its mean and reciprocal deviation are float32, and torch's tracing says otherwise (torch 2.13). A
message would have twice the bytes that were promised.
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
# Where they are in the tuple that the operator gives.
_STATISTICS = (1, 2)


def correct_statistics(graph: fx.Graph) -> None:
    """Rewrites the values that were traced; a CUDA device's are left as they are."""
    for target in NORMALISATIONS:
        for node in graph.find_nodes(op="call_function", target=target):
            values = [one.meta.get("val") for one in node.all_input_nodes]
            tensors = [value for value in values if isinstance(value, torch.Tensor)]
            given, *others = tensors
            mixed = any(one.dtype == torch.float32 for one in others)
            if given.dtype in _HALF and mixed and given.device.type == "cpu":
                _set_float32(node)


def _set_float32(node: fx.Node) -> None:
    found = list(node.meta["val"])
    for k in _STATISTICS:
        with found[k].fake_mode:
            found[k] = torch.empty_like(found[k], dtype=torch.float32)
    node.meta["val"] = tuple(found)
    for item in node.users:
        if item.target is operator.getitem and item.args[1] in _STATISTICS:
            item.meta["val"] = found[int(item.args[1])]  # type: ignore[arg-type]
