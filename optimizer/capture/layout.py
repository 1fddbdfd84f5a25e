"""Packs a tensor of captured shape and strides for the network, and restores it exactly.

Kernels may sum in another order for other strides, so a receiver gets exactly the captured strides
and not a contiguous copy. The packed form is compact: an expanded dimension (stride 0) counts once,
and the gaps of a strided view are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch


@dataclass(frozen=True)
class Layout:
    """Shape, strides in elements, and type of one operator's tensor.

    conjugate: the tensor is a view that shows the conjugates of what its memory holds; the memory
    is what is sent.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    conjugate: bool = False

    @staticmethod
    def of(value: torch.Tensor) -> Layout:
        return Layout(
            tuple(int(s) for s in value.shape),
            tuple(int(s) for s in value.stride()),
            value.dtype,
            value.is_conj(),
        )

    def same_memory_order(self, other: Layout) -> bool:
        """Whether the same elements lie in the same places; strides of single ones do not count."""
        return self.size == other.size and all(
            n <= 1 or a == b for n, a, b in zip(self.size, self.stride, other.stride, strict=True)
        )

    @cached_property
    def _core(self) -> tuple[int, ...]:
        """Dimensions that hold distinct elements, outermost in memory first."""
        kept = [
            d for d, (n, s) in enumerate(zip(self.size, self.stride, strict=True)) if s and n != 1
        ]
        return tuple(sorted(kept, key=lambda d: -self.stride[d]))

    @cached_property
    def _rest(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.size)) if d not in self._core)

    @cached_property
    def elements(self) -> int:
        """The number of distinct elements, which is what is sent."""
        return prod(self.size[d] for d in self._core) if 0 not in self.size else 0

    @property
    def wire_bytes(self) -> int:
        return self.elements * self.dtype.itemsize

    @cached_property
    def _dense(self) -> bool:
        expected = 1
        for d in reversed(self._core):
            if self.stride[d] != expected:
                return False
            expected *= self.size[d]
        return True

    @cached_property
    def _overlapping(self) -> bool:
        """Whether elements of different core dimensions share memory, as in a sliding window."""
        extent = 1
        for d in reversed(self._core):
            if self.stride[d] < extent:
                return True
            extent += self.stride[d] * (self.size[d] - 1)
        return False

    def _compact(self, value: torch.Tensor) -> torch.Tensor:
        """Returns value with one element of each other dimension, core dimensions first."""
        for d in self._rest:
            value = value.narrow(d, 0, 1)
        return value.permute(*self._core, *self._rest)

    def pack(self, value: torch.Tensor) -> torch.Tensor:
        """Returns uint8[wire_bytes], which shares memory with value where it can."""
        if not self.elements:
            return torch.empty(0, dtype=torch.uint8, device=value.device)
        value = value.conj() if self.conjugate else value
        value = as_captured(value.resolve_neg(), self.size, self.stride)
        if self._dense:
            flat = value.as_strided((self.elements,), (1,), value.storage_offset())
        else:
            flat = self._compact(value).reshape(-1).contiguous()
        return flat.view(torch.uint8)

    def unpack(self, wire: torch.Tensor) -> torch.Tensor:
        """Returns the tensor with its captured strides; it shares memory with wire where it can."""
        value = self._unpacked(wire.view(self.dtype))
        return value.conj() if self.conjugate else value

    def _unpacked(self, flat: torch.Tensor) -> torch.Tensor:
        if not self.elements:
            return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=flat.device)
        if self._dense:
            return flat.as_strided(self.size, self.stride)
        if self._overlapping:
            # torch copies nothing into memory that elements share. They all have the same value.
            order = [*self._core, *self._rest]
            back = [order.index(d) for d in range(len(order))]
            every = self._sent_shape(flat).permute(*back).expand(self.size)
            places = self._places(flat.device)
            memory = torch.empty(int(places.max()) + 1, dtype=self.dtype, device=flat.device)
            memory[places.reshape(-1)] = every.reshape(-1)
            return memory.as_strided(self.size, self.stride)
        value = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=flat.device)
        self._compact(value).copy_(self._sent_shape(flat))
        return value

    def _places(self, device: torch.device) -> torch.Tensor:
        """int64[size]: where each element lies in memory."""
        places = torch.zeros(self.size, dtype=torch.int64, device=device)
        for d, (n, s) in enumerate(zip(self.size, self.stride, strict=True)):
            along = torch.arange(n, device=device) * s
            places += along.view(*(-1 if k == d else 1 for k in range(len(self.size))))
        return places

    def _sent_shape(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.view(*(self.size[d] for d in self._core), *(1 for _ in self._rest))


def as_captured(
    value: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Returns value, or a copy with the captured strides where the kernel chose other ones.

    A rank that receives the tensor has the captured strides; so must a rank that computes it, or
    their next operators could differ in the last bit. Raises ValueError for another shape.
    """
    if value.stride() == stride and value.shape == size:
        return value
    if tuple(value.shape) != size:
        raise ValueError(
            f"an operator gave shape {tuple(value.shape)} where {size} was captured: the step's "
            "shapes depend on its data"
        )
    same = all(n == 1 or a == b for n, a, b in zip(size, value.stride(), stride, strict=True))
    if same:
        return value
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device).copy_(value)
