"""Makes a scalar of each gradient, in few tensors, for what is computed of all gradients together.

Scalars of consecutive parameters of one layer are stacked before they leave it, so that only few
small messages cross servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.nodes import call

aten = torch.ops.aten

# The most scalars in a stack: as many as a transformer layer has. A larger layer gets several.
MOST_SCALARS = 16


def layer_scalars(
    gradients: Mapping[str, fx.Node],
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    kind: str,
) -> list[fx.Node]:
    """Returns stacks of the scalars target(gradient, *arguments), in the order of the gradients,
    which are by parameter name. kind: what the nodes are called."""
    blocks: list[tuple[str, list[fx.Node]]] = []
    for name, gradient in gradients.items():
        scalar = call(target, (gradient, *arguments), f"{kind}_{name}")
        block = block_of(name)
        if not blocks or blocks[-1][0] != block or len(blocks[-1][1]) == MOST_SCALARS:
            blocks.append((block, []))
        blocks[-1][1].append(scalar)
    return [call(aten.stack.default, (some,), f"{kind}s_{block}") for block, some in blocks]


def block_of(name: str) -> str:
    """Returns a parameter's layer: its name up to the first number, else without its last part.

    `model.layers.3.attention.query.weight` is in `model.layers.3`.
    """
    parts = name.split(".")
    numbers = [k for k, part in enumerate(parts[:-1]) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1] if numbers else parts[:-1]) or name
