"""The job's runtime with one of its rules taken out, for RankPool(prepare=…).

Each function changes the process that calls it, for good.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from placewire.job.messages.rank_messages import RankMessage, RankMessages
from placewire.job.placed import runtime
from placewire.optimizer.capture import execute, layout, writers
from placewire.optimizer.capture.layout import Layout


def strides_as_kernels_choose() -> None:
    """Results keep the strides that a kernel gave them; what arrives has the captured ones."""
    execute.as_captured = _as_it_is  # type: ignore[attr-defined]


def strides_lost_on_the_way() -> None:
    """Received tensors are contiguous."""
    unpack = Layout.unpack

    def contiguous(self: Layout, wire: torch.Tensor) -> torch.Tensor:
        return unpack(self, wire).contiguous()

    Layout.unpack = contiguous  # type: ignore[method-assign]


def strides_sent_as_they_are() -> None:
    """A sender sends its memory as a kernel left it; a receiver reads it as captured."""
    layout.as_captured = _as_it_is
    execute.as_captured = _as_it_is  # type: ignore[attr-defined]


def _as_it_is(value: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return value


def ties_forgotten() -> None:
    """A parameter under two names is two parameters."""
    # Names are grouped by the object that they name.
    writers.id = lambda value: object()  # type: ignore[attr-defined]


def messages_told_apart_by_order_alone() -> None:
    """All messages of a pair have one tag, and a receiver expects them in another order than they
    are sent in."""
    derive = runtime.rank_messages  # type: ignore[attr-defined]

    def alike(*arguments: Any, **options: Any) -> RankMessages:
        messages = derive(*arguments, **options)
        rails = 1 + max((p.rail for m in messages.receives for p in m.parts), default=0)
        return RankMessages(
            sends={k: tuple(_tagged(m, rails) for m in v) for k, v in messages.sends.items()},
            receives=tuple(_tagged(m, rails) for m in reversed(messages.receives)),
        )

    runtime.rank_messages = alike  # type: ignore[attr-defined]


def _tagged(message: RankMessage, rails: int) -> RankMessage:
    return replace(message, parts=tuple(replace(p, tag=p.rail) for p in message.parts))
