"""Clipping by the norm of all gradients together: a reduction over all ranks, then one number.

As torch.nn.utils.clip_grad_norm_ without its multi-tensor kernels, to the last bit: the norm of
each gradient, in the order of the parameters, and the norm of these norms. Norms of consecutive
parameters of one layer are stacked before they leave it, so that few messages of some bytes cross
servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.updates import clip_coefficient

aten = torch.ops.aten

# In one block: what a layer of a transformer has. A layer of layers is cut.
MOST_NORMS = 16


def add_clip_coefficient(gradients: Mapping[str, fx.Node], clip_norm: float) -> fx.Node:
    """gradients: by parameter name, in the order of the parameters; in their layouts."""
    blocks: list[tuple[str, list[fx.Node]]] = []
    for name, gradient in gradients.items():
        norm = _call(aten.linalg_vector_norm.default, (gradient, 2.0), f"norm_{name}")
        block = block_of(name)
        if not blocks or blocks[-1][0] != block or len(blocks[-1][1]) == MOST_NORMS:
            blocks.append((block, []))
        blocks[-1][1].append(norm)
    stacks = [_call(aten.stack.default, (norms,), f"norms_{block}") for block, norms in blocks]
    return _call(clip_coefficient, (stacks, clip_norm), "clip_coefficient")


def block_of(name: str) -> str:
    """The layer of a parameter: its name up to the first number in it, else without its last part.

    `model.layers.3.attention.query.weight` is of `model.layers.3`.
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
