"""What tells one placed job from another, where one may go on from the other's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from placewire.frozen import Frozen


class JobIdentity(Frozen):
    """structure_hash: of the whole step; None before the step is captured. computation_hash: of
    what the loss is computed from, without updates; "" where that is not known. accumulate, shards:
    None where they are not known. tensors: type and shape of each saved tensor of the model, by
    name; None before the step is captured, and where only its graph is known."""

    structure_hash: str | None = None
    computation_hash: str = ""
    model: str
    batch: int
    accumulate: int | None = None
    shards: int | None = None
    seed: int
    optimizer: str
    tensors: Mapping[str, str] | None = None
