"""Answers what is sure of a random number, so that a model may ask it in Python.

Models that may skip layers at random draw a number and compare it with the probability, also where
that is 0, as `if torch.rand([]) < self.layerdrop` does. A step that is fixed before it runs has no
value of that number, but it is at least 0 and below 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# For what c the answer to a question, as x < c, is True for every x from 0 to below 1, and False.
_ANSWERS: Mapping[Any, tuple[Any, Any]] = {
    torch.Tensor.lt: (lambda c: c >= 1.0, lambda c: c <= 0.0),
    torch.Tensor.le: (lambda c: c >= 1.0, lambda c: c < 0.0),
    torch.Tensor.gt: (lambda c: c < 0.0, lambda c: c >= 1.0),
    torch.Tensor.ge: (lambda c: c <= 0.0, lambda c: c >= 1.0),
}


class AnsweringSureDraws(TorchFunctionMode):
    """Inside, `if torch.rand([]) < c` may be asked where every number that may be drawn gives the
    same answer."""

    def __init__(self) -> None:
        super().__init__()
        # Tensors are known by identity: `in` would compare their values.
        self._drawn: list[torch.Tensor] = []
        self._answers: list[tuple[torch.Tensor, bool]] = []

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.Tensor.__bool__:
            for asked, answer in self._answers:
                if asked is args[0]:
                    return answer
        made = function(*args, **(kwargs or {}))
        if function is torch.rand and made.dim() == 0:
            self._drawn.append(made)
        elif function in _ANSWERS and any(args[0] is drawn for drawn in self._drawn):
            number, (is_true, is_false) = args[1], _ANSWERS[function]
            if isinstance(number, int | float) and (is_true(number) or is_false(number)):
                self._answers.append((made, bool(is_true(number))))
        return made
