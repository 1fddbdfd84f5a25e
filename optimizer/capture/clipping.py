"""Clips by the norm of all gradients together: a reduction over all ranks, then one coefficient.
The norm is reported.

The result equals torch.nn.utils.clip_grad_norm_ without its multi-tensor kernels to the last bit:
the norm of each gradient, in the order of the parameters, and the norm of these norms.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from placewire.optimizer.capture.layer_scalars import layer_scalars
from placewire.optimizer.capture.nodes import call

# The metric of every step that clips.
GRADIENT_NORM = "gradient_norm"


def add_clip_coefficient(
    gradients: Mapping[str, fx.Node], clip_norm: float
) -> tuple[fx.Node, fx.Node]:
    """Returns the norm before clipping, and the coefficient. gradients: by parameter name, in the
    order and the layouts of the parameters."""
    norms = layer_scalars(gradients, torch.ops.aten.linalg_vector_norm.default, (2.0,), "norm")
    norm = call(norm_of_norms, (norms,), f"metric_{GRADIENT_NORM}")
    return norm, call(clip_coefficient, (norm, clip_norm), "clip_coefficient")


def norm_of_norms(norms: list[torch.Tensor]) -> torch.Tensor:
    """Returns the norm of all gradients together, with the arithmetic of
    torch.nn.utils.clip_grad_norm_. norms: float[k] each, in the order of the parameters."""
    norm: torch.Tensor = torch.linalg.vector_norm(torch.cat(norms), 2.0)
    return norm


def clip_coefficient(norm: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Returns the scalar, at most 1, that every gradient is multiplied by, likewise."""
    return torch.clamp(clip_norm / (norm + 1e-6), max=1.0)
