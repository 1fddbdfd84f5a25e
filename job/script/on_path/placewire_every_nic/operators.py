"""The operators of c10d that run in the place of torch's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
from .untold_operation import begun_by_torch, is_told

# By operator: what a backend calls it, which arguments it takes, and its options.
_METHODS: dict[str, tuple[str, tuple[str, ...], Any]] = {
    "allreduce_": ("allreduce", ("tensors",), AllreduceOptions),
    "broadcast_": ("broadcast", ("tensors",), BroadcastOptions),
    "reduce_": ("reduce", ("tensors",), ReduceOptions),
    "allgather_": ("allgather", ("output_tensors", "input_tensors"), AllgatherOptions),
    "_allgather_base_": ("_allgather_base", ("output_tensor", "input_tensor"), AllgatherOptions),
    "_reduce_scatter_base_": (
        "_reduce_scatter_base", ("output_tensor", "input_tensor"), ReduceScatterOptions,
    ),
    "reduce_scatter_": (
        "reduce_scatter", ("output_tensors", "input_tensors"), ReduceScatterOptions,
    ),
    "barrier": ("barrier", (), BarrierOptions),
}  # fmt: skip
# Operators of a list of tensors, which Python cannot have a backend begin: each tensor is given to
# the operator of one, which gloo does as well.
_OF_EACH = {
    "allgather_into_tensor_coalesced_": "_allgather_base_",
    "reduce_scatter_tensor_coalesced_": "_reduce_scatter_base_",
}
# gloo's handles of these have no future to be joined with others.
_WITHOUT_FUTURE = ("_reduce_scatter_base_", "reduce_scatter_")
# The arguments of operators that are options of a backend's method.
_OPTIONS = {
    "root_rank": "rootRank", "root_tensor": "rootTensor", "async_op": "asyncOp",
    "sparse_indices": "sparseIndices", "device_ids": "device_ids",
}  # fmt: skip


def _begun(name: str, backend: Any, values: Values) -> Any:
    """Has a backend begin an operator, as torch's own kernel does; but unlike a call of that kernel
    this does not keep Python's lock meanwhile, for which a thread of gloo's may wait."""
    if "reduce_op" in values and not is_told(values["reduce_op"]):
        return begun_by_torch(name, backend, values)
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


def _whole(elements: int) -> list[tuple[int, int]]:
    return [(0, elements)]


class _Operator:
    """One of c10d's operators, in front of torch's own kernel."""

    _holding = Holding()

    def __init__(self, name: str, nics: Nics) -> None:
        overload = getattr(torch.ops.c10d, name).default
        self._name, self._nics = name, nics
        # Read once: torch makes new objects of them whenever they are asked for.
        self._arguments = [one.name for one in overload._schema.arguments]
        self._defaults = {one.name: one.default_value for one in overload._schema.arguments}
        self._returns_tensors = len(overload._schema.returns) == 2

    def __call__(self, *args: Any, **options: Any) -> Any:
        values = {**self._defaults, **dict(zip(self._arguments, args, strict=False)), **options}
        values["process_group"] = group = ProcessGroup.unbox(values["process_group"])
        filled = values[self._arguments[0]]
        if self._name == "barrier":
            work = self._barrier(group, values)
        else:
            work = self._work(group, values, filled)
        return (filled, work.boxed()) if self._returns_tensors else work.boxed()

    def _barrier(self, group: Any, values: Values) -> Any:
        work = _begun(self._name, group._get_backend(CPU), values)
        if not (futures := self._nics.begun(group)):
            return work
        # It ends after what the group began before it, as it does in gloo.
        future = future_of([*futures, work.get_future()], lambda: None, [])
        return self._holding.holder(AllOf(future))

    def _work(self, group: Any, values: Values, filled: Any) -> Any:
        works: list[Any] = []
        finishes: list[Callable[[], None]] = []
        each = self._each(values)
        for name, one in each:
            backends, cut = self._cut(name, group, one)
            if cut is None:
                works.append(_begun(name, group._get_backend(CPU), one))
            elif len(backends) == 1 and name == self._name and name not in _WITHOUT_FUTURE:
                # A handle of gloo's own costs less time than ours.
                works.append(_begun(name, backends[0], one))
                self._nics.begun(group, works[0].get_future())
            else:
                parts, finish = cut
                works += [_begun(part, backends[k], of) for k, (part, of) in enumerate(parts)]
                finishes.append(finish)
        if len(works) == 1 and not finishes:
            return works[0]

        def finish_all() -> None:
            for finish in finishes:
                finish()

        future = future_of([work.get_future() for work in works], finish_all, filled)
        self._nics.begun(group, future)
        # C++ waits for each of several tensors by itself.
        return self._holding.holder(AllOf(future, len(each)))

    def _each(self, values: Values) -> list[tuple[str, Values]]:
        """The operators of which this one is made, and their arguments."""
        if self._name not in _OF_EACH:
            return [(self._name, values)]
        pairs = zip(values["outputs"], values["inputs"], strict=True)
        return [
            (_OF_EACH[self._name], {**values, "output_tensor": out, "input_tensor": given})
            for out, given in pairs
        ]

    def _cut(self, name: str, group: Any, values: Values) -> tuple[list[Any], Cut | None]:
        """The process groups that run the parts; None where the operator is the group's to run as
        it is."""
        rule, sent = RULES[name]
        tensors = values[sent] if isinstance(values[sent], (list, tuple)) else [values[sent]]
        if self._nics.of(group) and all(one.layout == torch.strided for one in tensors):
            if sum(one.numel() * one.element_size() for one in tensors) >= self._nics.least_bytes:
                return self._nics.of(group), rule(values, self._nics.ranges, name)
            cut = rule(values, _whole, name)
            # Taken by all ranks or none, so that they take turns alike.
            return [] if cut is None else [self._nics.fastest(group)], cut
        if name != self._name:  # One of several, whose handles are to be joined.
            return [group._get_backend(CPU)], rule(values, _whole, name)
        return [], None


def replaced_kernels(nics: Nics) -> Any:
    """Returns what must live on for them."""
    operators = {name: _Operator(name, nics) for name in (*_METHODS, *_OF_EACH)}
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced.
        for name, operator in operators.items():
            library.impl(name, operator, "CPU")
    return library
