"""Counts the FLOPs of a traced operator from the shapes of its tensors.

They are counted as capture counts (optimizer/capture/costs.py): a multiplication and an addition
are two; products, convolutions and attention have formulas; a reduction costs one per element that
it reads, everything else one per element that it gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from placewire.optimizer.published.importers.traced import Call, TracedTensor

_REDUCTIONS = ("sum", "mean", "amax", "amin", "var", "var_mean", "max", "min", "argmax", "norm")
Formula = Callable[[Call], int]


def flops_of(call: Call) -> int:
    name = call.name.rpartition("::")[2]
    formula = _FORMULAS.get(name)
    try:
        return formula(call) if formula else _elements(call, name)
    except IndexError:  # an overload with other arguments
        return _elements(call, name)


def _elements(call: Call, name: str) -> int:
    given = max((tensor.elements for tensor in call.gives), default=0)
    written = max((tensor.elements for tensor in call.writes), default=0)
    read = max((t.elements for t in call.reads), default=0) if name in _REDUCTIONS else 0
    return max(given, written, read)


def _argument(call: Call, number: int) -> TracedTensor:
    return call.arguments[number][0]


def _product(call: Call, left: int = 0) -> int:
    """left: the number of the argument that is the first factor."""
    return 2 * call.gives[0].elements * _argument(call, left).shape[-1]


def _convolution(call: Call) -> int:
    return 2 * call.gives[0].elements * math.prod(_argument(call, 1).shape[1:])


def _transposed(call: Call) -> int:
    return 2 * _argument(call, 0).elements * math.prod(_argument(call, 1).shape[1:])


def _convolution_backward(call: Call) -> int:
    """A convolution each for the input's gradient and the weight's, where the call gives it."""
    products = sum(len(tensor.shape) > 1 for tensor in call.gives[:2])
    weight = _argument(call, 2).shape
    return products * 2 * _argument(call, 0).elements * math.prod(weight[1:])


def _attention(call: Call) -> int:
    query, key, value = (_argument(call, k) for k in range(3))
    scores = query.elements // max(query.shape[-1], 1) * key.shape[-2]
    return 2 * scores * (query.shape[-1] + value.shape[-1])


_FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "linear"), _product),
    **dict.fromkeys(("addmm", "baddbmm"), partial(_product, left=1)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "convolution_backward": _convolution_backward,
    "scaled_dot_product_attention": _attention,
}
