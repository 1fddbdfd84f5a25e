"""Compares the first batch that ranks read, each by itself: it must be the same for all.

A rank tells two numbers of each tensor: what it computed of its elements, and how far that of
another rank may be. Whole numbers are compared exactly. Of others the last bits may differ between
processors of different types: they are told as a weighted sum.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

from placewire.job.errors import JobError
from placewire.optimizer.capture.protocol import Tensors

# Of a tensor so many are read, evenly spread: some MiB.
_MOST_ELEMENTS = 1 << 20
# The sum of another batch differs by about 0.4 of the norm, and where a thousandth of its rows do,
# by a hundredth.
_ROUNDING = 1e-4
# So many bits are exact in a number that ranks tell.
_DIGEST_BYTES = 6
_NOT_READ = (0.0, -1.0)

SAME_EVERYWHERE = (
    "let it return the same batch for the same number in every process: sort what a folder lists "
    "(glob, listdir), seed generators of its own by this number and never by the time, and have "
    "the same version of the data on every server"
)


def told_of(batch: Tensors, count: int) -> tuple[float, ...]:
    """Returns two numbers for each tensor of the batch; as many for those up to `count` that it
    lacks, which say that this rank did not read them."""
    told = [number for tensor in batch for number in _told_of(tensor)]
    return (*told, *_NOT_READ * (count - len(batch)))


def require_same(
    told: Sequence[Sequence[float]], devices: Sequence[str], tensors: int, what: str
) -> None:
    """told: by rank. devices: by rank. tensors: how many a batch has before it is cut into
    micro-batches. what: the batch, as the user calls it. Raises JobError where ranks that read it
    read others."""
    by_position = zip(*map(_pairs, told), strict=True)
    for position, pairs in enumerate(by_position):
        readers = [rank for rank, (_, most) in enumerate(pairs) if most >= 0]
        others = [rank for rank in readers if _differ(pairs[readers[0]], pairs[rank])]
        if others:
            alike = [rank for rank in readers if rank not in others]
            each = (", ".join(f"rank {k} ({devices[k]})" for k in some) for some in (alike, others))
            raise JobError(
                f"{what} is not the same on all ranks: tensor {position % tensors} of it, from 0, "
                f"is one on {' and another on '.join(each)}",
                SAME_EVERYWHERE,
            )


def _pairs(told: Sequence[float]) -> list[tuple[float, float]]:
    return [*zip(told[::2], told[1::2], strict=True)]


def _differ(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) > max(one[1], other[1])


def _told_of(tensor: torch.Tensor) -> tuple[float, float]:
    apart = max(1, math.ceil(tensor.numel() / _MOST_ELEMENTS))
    some = tensor.detach().reshape(-1)[::apart].cpu()
    if some.is_complex():
        some = torch.view_as_real(some).reshape(-1)
    if not some.is_floating_point():
        data = some.contiguous().view(torch.uint8).numpy().tobytes()
        digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
        return float(int.from_bytes(digest, "little")), 0.0
    values = torch.nan_to_num(some.double(), nan=0.0, posinf=1.0, neginf=-1.0)
    draw = torch.Generator().manual_seed(0)
    weights = torch.rand(len(values), generator=draw, dtype=torch.float64) - 0.5
    return float(values @ weights), _ROUNDING * float(values.norm())
