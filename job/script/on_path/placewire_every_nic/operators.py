"""The operators of c10d that run in the place of torch's own."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    ProcessGroup,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
)

from .cuts import RULES, Cut, Values
from .handles import AllOf, Holding, future_of
from .nics import CPU, Nics

# By operator: what a backend calls it, which arguments it takes, and its options.
_METHODS: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "allreduce_": ("allreduce", ("tensors",), AllreduceOptions),
    "broadcast_": ("broadcast", ("tensors",), BroadcastOptions),
    "reduce_": ("reduce", ("tensors",), ReduceOptions),
    "allgather_": ("allgather", ("output_tensors", "input_tensors"), AllgatherOptions),
    "_allgather_base_": ("_allgather_base", ("output_tensor", "input_tensor"), AllgatherOptions),
    "allgather_into_tensor_coalesced_": (
        "allgather_into_tensor_coalesced", ("outputs", "inputs"), AllgatherOptions,
    ),
    "_reduce_scatter_base_": (
        "_reduce_scatter_base", ("output_tensor", "input_tensor"), ReduceScatterOptions,
    ),
    "reduce_scatter_tensor_coalesced_": (
        "reduce_scatter_tensor_coalesced", ("outputs", "inputs"), ReduceScatterOptions,
    ),
    "reduce_scatter_": (
        "reduce_scatter", ("output_tensors", "input_tensors"), ReduceScatterOptions,
    ),
    "barrier": ("barrier", (), BarrierOptions),
}  # fmt: skip
# The arguments of operators that are options of a backend's method.
_OPTIONS = {
    "root_rank": "rootRank", "root_tensor": "rootTensor", "async_op": "asyncOp",
    "sparse_indices": "sparseIndices", "device_ids": "device_ids",
}  # fmt: skip


def _begun(name: str, backend: Any, values: Values) -> Any:
    """Has a backend begin an operator, as torch's own kernel does; but unlike a call of that kernel
    this does not keep Python's lock meanwhile, for which a thread of gloo's may wait."""
    method, arguments, kind = _METHODS[name]
    options = kind()
    for argument, option in _OPTIONS.items():
        if values.get(argument) is not None:
            setattr(options, option, values[argument])
    if values.get("timeout", -1) >= 0:
        options.timeout = timedelta(milliseconds=values["timeout"])
    if "reduce_op" in values:
        operation = values["reduce_op"].op()
        if isinstance(operation, int):
            operation = ReduceOp.RedOpType(operation)
        options.reduceOp = ReduceOp(operation)
    given = [values[argument] for argument in arguments]
    return getattr(backend, method)(*given, options)


class _Operator:
    """One of c10d's operators, in front of torch's own kernel."""

    _holding = Holding()

    def __init__(self, name: str, nics: Nics) -> None:
        overload = getattr(torch.ops.c10d, name).default
        self.name, self._nics = name, nics
        self._arguments = overload._schema.arguments
        self._returns_tensors = len(overload._schema.returns) == 2

    def __call__(self, *args: Any, **options: Any) -> Any:
        values = {one.name: one.default_value for one in self._arguments}
        values.update(options)
        for k, value in enumerate(args):
            values[self._arguments[k].name] = value
        values["process_group"] = group = ProcessGroup.unbox(values["process_group"])
        backends, cut = self._nics.of(group), None
        if backends and self.name != "barrier" and self._is_large(values):
            rule = RULES[self.name][0]
            cut = rule(values, self._nics, self.name)
        filled = values[self._arguments[0].name]
        if cut is not None:
            work = self._cut(group, backends, cut, filled)
        else:
            work = _begun(self.name, group._get_backend(CPU), values)
            if self.name == "barrier" and (futures := self._nics.begun(group)):
                # A barrier ends after what the group began before it, as it does in gloo.
                future = future_of([*futures, work.get_future()], lambda: None, [])
                work = self._holding.holder(AllOf(future))
        return (filled, work.boxed()) if self._returns_tensors else work.boxed()

    def _cut(self, group: Any, backends: list[Any], cut: Cut, filled: Any) -> Any:
        parts, finish = cut
        works = [_begun(name, backends[k], values) for k, (name, values) in enumerate(parts)]
        future = future_of([work.get_future() for work in works], finish, filled)
        self._nics.begun(group, future)
        return self._holding.holder(AllOf(future))

    def _is_large(self, values: Values) -> bool:
        tensors = values[RULES[self.name][1]]
        some = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        return sum(
            one.numel() * one.element_size() for one in some
        ) >= self._nics.least_bytes and all(one.layout == torch.strided for one in some)


def replaced_kernels(nics: Nics) -> Any:
    """Returns what must live on for them."""
    operators = {name: _Operator(name, nics) for name in _METHODS}
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced.
        for name, operator in operators.items():
            library.impl(name, operator, "CPU")
    return library
