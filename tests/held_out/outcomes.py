"""What becomes of the models of the shelf that do not train as eager PyTorch does, and why."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Refused(NamedTuple):
    """why: for documents. said: what the refusal says, which names the model's own line."""

    why: str
    said: str


class OtherBits(NamedTuple):
    """Equal on all numbers of ranks, and other than eager PyTorch in last bits. in_float32: without
    autocast. vectors: of the processors on which that is so, "" for all."""

    why: str
    in_float32: bool
    in_bf16: bool
    vectors: str = ""


REFUSED = {
    "transformers DeBERTa-v2": Refused(
        "it branches on labels: `if label_index.size(0) > 0`",
        r"`if label_index.size\(0\) > 0:.*data-dependent control flow",
    ),
    "transformers GPT-J": Refused(
        "it replaces a buffer while it runs: `self._get_embed_positions(position_ids)`",
        r"`embed_positions = self._get_embed_positions\(position_ids\)`",
    ),
    "transformers CodeGen": Refused(
        "it replaces a buffer while it runs, of which it reads `embed_positions[position_ids]`",
        r"`sincos = embed_positions\[position_ids\]`",
    ),
}
_FUSED = "eager PyTorch runs the CPU's fused kernel, and ranks run matrix products"
_BIAS = (
    "its layers share one position bias, whose gradients ranks add in another order; with one "
    "layer it is equal"
)
OTHER_BITS = {
    "torch.nn LSTM": OtherBits(_FUSED, in_float32=True, in_bf16=True),
    "torch.nn LSTM, two layers, both ways": OtherBits(_FUSED, in_float32=True, in_bf16=True),
    "torch.nn GRU": OtherBits(
        "on processors with AVX-512 eager PyTorch computes the gates in rows of 16 floats, which "
        "are too short for two vectors and are rounded by another function; ranks have long rows",
        in_float32=True,
        in_bf16=False,
        vectors="AVX512",
    ),
    "transformers T5": OtherBits(_BIAS, in_float32=True, in_bf16=True),
    "transformers T5, checkpointed": OtherBits(
        "PyTorch adds the gradients of what several checkpoints read for each checkpoint first; "
        f"ranks add them as without checkpoints; {_BIAS}",
        in_float32=True,
        in_bf16=True,
    ),
}


def has_other_bits(name: str, in_bf16: bool) -> bool:
    """Whether eager PyTorch rounds otherwise than ranks do, on this processor."""
    known = OTHER_BITS.get(name)
    if known is None or not (known.in_bf16 if in_bf16 else known.in_float32):
        return False
    return known.vectors in ("", torch.backends.cpu.get_cpu_capability())
