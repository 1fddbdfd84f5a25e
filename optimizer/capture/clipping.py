"""Clips by the norm of all gradients together: a reduction over all ranks, then one coefficient.
The norm is reported.

The result equals torch.nn.utils.clip_grad_norm_ without its multi-tensor kernels to the last bit:
the norm of each gradient, in the order of the parameters, and the norm of these norms. Norms of
consecutive parameters of one layer are stacked before they leave it, so that only few small
messages cross servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.updates import clip_coefficient, norm_of_norms

aten = torch.ops.aten

# The most norms in a stack: as many as a transformer layer has. A larger layer gets several stacks.
MOST_NORMS = 16


# The metric of every step that clips.
GRADIENT_NORM = "gradient_norm"


def add_clip_coefficient(
    gradients: Mapping[str, fx.Node], clip_norm: float
) -> tuple[fx.Node, fx.Node]:
    """Returns the norm before clipping, and the coefficient. gradients: by parameter name, in the
    order and the layouts of the parameters."""
    blocks: list[tuple[str, list[fx.Node]]] = []
    for name, gradient in gradients.items():
        norm = _call(aten.linalg_vector_norm.default, (gradient, 2.0), f"norm_{name}")
        block = block_of(name)
        if not blocks or blocks[-1][0] != block or len(blocks[-1][1]) == MOST_NORMS:
            blocks.append((block, []))
        blocks[-1][1].append(norm)
    stacks = [_call(aten.stack.default, (norms,), f"norms_{block}") for block, norms in blocks]
    norm = _call(norm_of_norms, (stacks,), f"metric_{GRADIENT_NORM}")
    return norm, _call(clip_coefficient, (norm, clip_norm), "clip_coefficient")


def block_of(name: str) -> str:
    """Returns a parameter's layer: its name up to the first number, else without its last part.

    `model.layers.3.attention.query.weight` is in `model.layers.3`.
    """
    parts = name.split(".")
    numbers = [k for k, part in enumerate(parts[:-1]) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts[:-1]) or name


def _call(target: Callable[..., Any], arguments: tuple[Any, ...], name: str) -> fx.Node:
    operands: list[fx.Node] = []
    fx.node.map_arg(arguments, operands.append)
    graph, mode = operands[0].graph, operands[0].meta["val"].fake_mode
    node = graph.create_node("call_function", target, arguments, name=name.replace(".", "_"))
    values: Any = fx.node.map_arg(arguments, lambda operand: operand.meta["val"])
    with mode:
        node.meta["val"] = target(*values)
    return node
