"""Says into which operators a decomposed capture takes apart what PyTorch runs as one.

They are torch's own decompositions to the core ATen operators, and of what is a core operator
although it does several things (a matrix product with its bias, softmax, layer normalisation, GELU,
dropout) torch's decompositions to simpler ones. Convolutions, pooling and embeddings have none. The
forward half of a batch norm stays whole, too: whoever cuts the step into micro-batches asks it what
it normalises over.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.nn.attention import SDPBackend, sdpa_kernel

aten = torch.ops.aten

_FINER = (
    aten.addmm,
    aten._softmax,
    aten._log_softmax,
    aten.native_layer_norm,
    aten.native_group_norm,
    aten.gelu,
    aten.native_dropout,
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns by operator what computes the same of simpler ones."""
    found: dict[Any, Callable[..., Any]] = {
        **core_aten_decompositions(),
        **get_decompositions(_FINER),
        aten.var_mean.correction: variance_and_mean,
    }
    return found


def variance_and_mean(
    given: torch.Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As torch.var_mean; torch's own decomposition has operators that are none of ATen."""
    dims = [*(dim or range(given.dim()))]
    count = math.prod(given.shape[k] for k in dims)
    mean = given.mean(dims, keepdim=True)
    apart = given - mean
    divisor = max(count - (1 if correction is None else correction), 0)
    variance = (apart * apart).sum(dims, keepdim=True) / divisor
    if keepdim:
        return variance, mean
    return variance.squeeze(dims), mean.squeeze(dims)


def attention_written_out() -> contextlib.AbstractContextManager[None]:
    """Inside, attention is matrix products and a softmax: the backward pass of the one operator
    that does all has no decomposition."""
    return sdpa_kernel(SDPBackend.MATH)
