"""The blocks that repeat in a model, by the paths of its modules."""

from __future__ import annotations


def block_of(module: str) -> str:
    """model.layers.3.attention -> model.layers.3; "" where the path has no number."""
    words = module.split(".")
    number = next((k for k, word in enumerate(words) if word.isdigit()), None)
    return "" if number is None else ".".join(words[: number + 1])
