"""The rules by which each collective is cut into one for each NIC's group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Values = dict[str, Any]
# Tensors, and their elements in a row of its own, to be copied back.
Copies = list[tuple[torch.Tensor, torch.Tensor]]
# From how many elements there are to the first and the last, exclusive, of each part.
Ranges = Callable[[int], list[tuple[int, int]]]
# What a NIC's group is to run, by (operator, its arguments), and what is done when all have run.
Cut = tuple[list[tuple[str, Values]], Callable[[], None]]


def _flat(tensor: torch.Tensor, copies: Copies) -> torch.Tensor:
    """The elements in a row. copies: gets (tensor, row) where the row is a copy."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    row = tensor.contiguous().view(-1)
    copies.append((tensor, row))
    return row


def _copy_back(copies: Copies) -> None:
    with torch.inference_mode():  # A thread of gloo's runs this; the tensors may be of such a mode.
        for tensor, row in copies:
            tensor.copy_(row.view(tensor.shape))


def _one(values: Values, ranges: Ranges, name: str, key: str = "tensors") -> Cut | None:
    """Cuts allreduce_, broadcast_ and reduce_, in which every part of a tensor stands by itself."""
    if len(values[key]) != 1 or values.get("sparse_indices") is not None:
        return None
    copies: Copies = []
    row = _flat(values[key][0], copies)
    parts = [(name, {**values, key: [row[a:b]]}) for a, b in ranges(row.numel())]
    return parts, lambda: _copy_back(copies)


def _gathered(
    values: Values, ranges: Ranges, rows: list[torch.Tensor], own: torch.Tensor, copies: Copies
) -> Cut:
    """rows: of each rank what it gives, to be filled. own: what this rank gives."""
    given, parts = own.contiguous().view(-1), []
    for a, b in ranges(given.numel()):
        asked = {"output_tensors": [[row[a:b] for row in rows]], "input_tensors": [given[a:b]]}
        parts.append(("allgather_", {**values, **asked}))
    return parts, lambda: _copy_back(copies)


def _allgather(values: Values, ranges: Ranges, name: str) -> Cut | None:
    rows, given = values["output_tensors"], values["input_tensors"]
    # Where one rank gives more than another, no rank has rows that are all like its own.
    if len(given) != 1 or any(row.numel() != given[0].numel() for row in rows[0]):
        return None
    copies: Copies = []
    return _gathered(values, ranges, [_flat(row, copies) for row in rows[0]], given[0], copies)


def _allgather_base(values: Values, ranges: Ranges, name: str) -> Cut | None:
    given = values["input_tensor"]
    if not given.numel():
        return None
    copies: Copies = []
    table = _flat(values["output_tensor"], copies).view(-1, given.numel())
    return _gathered(values, ranges, list(table), given, copies)


def _reduce_scatter_base(values: Values, ranges: Ranges, name: str) -> Cut | None:
    """As gloo does it: sums all, and keeps this rank's row."""
    out, given, group = values["output_tensor"], values["input_tensor"], values["process_group"]
    if given.numel() != out.numel() * group.size() or given.dtype != out.dtype:
        return None  # gloo says what is wrong.
    if not out.numel():
        return None
    row, mine, parts = given.contiguous().view(-1).clone(), group.rank(), []
    for a, b in ranges(row.numel()):
        parts.append(("allreduce_", {**values, "tensors": [row[a:b]]}))

    def finish() -> None:
        _copy_back([(out, row.view(-1, out.numel())[mine])])

    return parts, finish


def _reduce_scatter(values: Values, ranges: Ranges, name: str) -> Cut | None:
    outs, given = values["output_tensors"], values["input_tensors"]
    if len(outs) != 1 or any(one.numel() != outs[0].numel() for one in given[0]):
        return None
    if any(one.dtype != outs[0].dtype for one in given[0]):
        return None
    rows = torch.cat([one.reshape(-1) for one in given[0]])
    one = {"output_tensor": outs[0], "input_tensor": rows}
    return _reduce_scatter_base({**values, **one}, ranges, name)


# By operator: how it is cut, and which argument says how many bytes every rank sends.
RULES: dict[str, tuple[Callable[[Values, Ranges, str], Cut | None], str]] = {
    "allreduce_": (_one, "tensors"),
    "broadcast_": (_one, "tensors"),
    "reduce_": (_one, "tensors"),
    "allgather_": (_allgather, "input_tensors"),
    "_allgather_base_": (_allgather_base, "input_tensor"),
    "_reduce_scatter_base_": (_reduce_scatter_base, "input_tensor"),
    "reduce_scatter_": (_reduce_scatter, "output_tensors"),
}
