"""Cuts each large collective of gloo between all NICs; gloo gives each to one.

This file runs in a script's own interpreter, where nothing of Placewire is installed: it imports
torch alone. By torch.library it puts kernels of its own in the place of those of `c10d` for tensors
in the processor's memory. Whoever makes a process group of gloo makes one more on each NIC at that
moment, when all of its ranks are there. A part of the elements of a large collective then goes to
each NIC, in proportion to `PLACEWIRE_NICS`.

All ranks must decide alike what is cut, or they wait for each other. So they agree on it when the
first group is made, and it depends on sizes alone that all ranks see alike. What only two ranks
take part in is never cut, nor what may have other sizes on other ranks: send and recv, all_to_all,
gather and scatter.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    Work,
)

# NAME:PART,… of the NICs that all servers have, or NOT_CUT; and the bytes of a rank's tensor from
# which on a collective is cut.
NICS_VARIABLE, LEAST_VARIABLE, NOT_CUT = "PLACEWIRE_NICS", "PLACEWIRE_CUT_FROM_BYTES", "no"
# All ranks have just made a group together.
_AGREEMENT = timedelta(seconds=30)
_LEAST_BYTES = 1 << 18
# It relies on what no release of torch promises, and no earlier one was tried.
_LEAST_TORCH = (2, 13)
# Parts begin where vectors of a processor do.
_ELEMENTS = 64
_CPU = torch.device("cpu")

Values = dict[str, Any]
# Tensors, and their elements in a row of its own, to be copied back.
Copies = list[tuple[torch.Tensor, torch.Tensor]]
# What a NIC's group is to run, by (operator, its arguments), and what is done when all have run.
Cut = tuple[list[tuple[str, Values]], Callable[[], None]]


class _Nics:
    """ends: up to which part of all elements each NIC carries. agreed: whether all ranks cut; None
    before the first group is made."""

    def __init__(self, text: str) -> None:
        each = [one.rpartition(":") for one in text.split(",") if text != NOT_CUT]
        parts = [float(part) for _, _, part in each]
        self._text, self._names = text, [name for name, _, _ in each]
        self.ends = [sum(parts[: k + 1]) / sum(parts) for k in range(len(parts))]
        self.least_bytes = int(os.environ.get(LEAST_VARIABLE, _LEAST_BYTES))
        self.agreed: bool | None = None
        # By the name of a process group its groups on the NICs, and the handles of what they do.
        self._groups: dict[str, list[Any]] = {}
        self._pending: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        atexit.register(self.forget)  # Groups that live on when torch ends abort the process.

    def ranges(self, elements: int) -> list[tuple[int, int]]:
        """First and last element, exclusive, of each NIC's part, which is never empty."""
        found, start = [], 0
        for part in self.ends[:-1]:
            end = max(int(elements * part) // _ELEMENTS * _ELEMENTS, start + _ELEMENTS)
            found.append((start, end))
            start = end
        return [*found, (start, elements)]

    def join(self, group: Any, store: Any) -> None:
        """To be called by all ranks of a group that was just made."""
        if self.agreed is None:
            self.agreed = _agreed(self._text, group, store)
        if self.agreed and group.size() > 1 and _is_gloo(group):
            own, name = group._get_backend(_CPU), group.group_name
            self._groups[name] = [
                _on_nic(PrefixStore(f"placewire/{k}", store), own, nic)
                for k, nic in enumerate(self._names)
            ]

    def of(self, group: Any) -> list[Any]:
        """A process group for each NIC; [] where the group's collectives are not cut."""
        return self._groups.get(group.group_name, [])

    def forget(self, name: str | None = None) -> None:
        """Ends the groups of one process group, or of all."""
        for known in (self._groups, self._pending):
            if name is None:
                known.clear()
            else:
                known.pop(name, None)
        if name is None:
            self.agreed = None

    def begun(self, group: Any, future: Any = None) -> list[Any]:
        """The futures of what the group does; future: of what it begins now."""
        with self._lock:
            left = [one for one in self._pending.get(group.group_name, []) if not one.done()]
            self._pending[group.group_name] = left if future is None else [*left, future]
            return left


def _agreed(text: str, group: Any, store: Any) -> bool:
    """Whether all ranks cut alike. One on which this file does not run never says so."""
    apart = PrefixStore("placewire/cut", store)
    apart.set(str(group.rank()), text)
    keys = [str(rank) for rank in range(group.size())]
    try:
        apart.wait(keys, _AGREEMENT)
        alike = all(apart.get(key) == text.encode() for key in keys)
    except RuntimeError:
        alike = False
    if not alike and text != NOT_CUT:
        _say("not every rank can cut collectives between NICs: each collective is one NIC's")
    return alike and text != NOT_CUT


def _say(text: str) -> None:
    sys.stderr.write(f"placewire: {text}\n")


def _on_nic(store: Any, like: Any, nic: str) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(interface=nic)]
    options._threads = like.options._threads
    options._timeout = like.options._timeout
    return gloo(store, like.rank(), like.size(), options)


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


def _one(values: Values, nics: _Nics, name: str, key: str = "tensors") -> Cut | None:
    """Cuts allreduce_, broadcast_ and reduce_, in which every part of a tensor stands by itself."""
    if len(values[key]) != 1 or values.get("sparse_indices") is not None:
        return None
    copies: Copies = []
    row = _flat(values[key][0], copies)
    parts = [(name, {**values, key: [row[a:b]]}) for a, b in nics.ranges(row.numel())]
    return parts, lambda: _copy_back(copies)


def _gathered(
    values: Values, nics: _Nics, rows: list[torch.Tensor], own: torch.Tensor, copies: Copies
) -> Cut:
    """rows: of each rank what it gives, to be filled. own: what this rank gives."""
    given, parts = own.contiguous().view(-1), []
    for a, b in nics.ranges(given.numel()):
        asked = {"output_tensors": [[row[a:b] for row in rows]], "input_tensors": [given[a:b]]}
        parts.append(("allgather_", {**values, **asked}))
    return parts, lambda: _copy_back(copies)


def _allgather(values: Values, nics: _Nics, name: str) -> Cut | None:
    rows, given = values["output_tensors"], values["input_tensors"]
    # Where one rank gives more than another, no rank has rows that are all like its own.
    if len(given) != 1 or any(row.numel() != given[0].numel() for row in rows[0]):
        return None
    copies: Copies = []
    return _gathered(values, nics, [_flat(row, copies) for row in rows[0]], given[0], copies)


def _allgather_base(values: Values, nics: _Nics, name: str) -> Cut | None:
    given = values["input_tensor"]
    copies: Copies = []
    table = _flat(values["output_tensor"], copies).view(-1, given.numel())
    return _gathered(values, nics, list(table), given, copies)


def _reduce_scatter_base(values: Values, nics: _Nics, name: str) -> Cut | None:
    """As gloo does it: sums all, and keeps this rank's row."""
    out, given, group = values["output_tensor"], values["input_tensor"], values["process_group"]
    if given.numel() != out.numel() * group.size() or given.dtype != out.dtype:
        return None  # gloo says what is wrong.
    row, mine, parts = given.contiguous().view(-1).clone(), group.rank(), []
    for a, b in nics.ranges(row.numel()):
        parts.append(("allreduce_", {**values, "tensors": [row[a:b]]}))

    def finish() -> None:
        _copy_back([(out, row.view(-1, out.numel())[mine])])

    return parts, finish


def _coalesced(
    rule: Callable[[Values, _Nics, str], Cut | None],
) -> Callable[[Values, _Nics, str], Cut | None]:
    """The rule of one tensor for a list that has one; longer lists are not cut."""

    def cut(values: Values, nics: _Nics, name: str) -> Cut | None:
        if len(values["inputs"]) != 1:
            return None
        one = {"output_tensor": values["outputs"][0], "input_tensor": values["inputs"][0]}
        return rule({**values, **one}, nics, name)

    return cut


def _reduce_scatter(values: Values, nics: _Nics, name: str) -> Cut | None:
    outs, given = values["output_tensors"], values["input_tensors"]
    if len(outs) != 1 or any(one.numel() != outs[0].numel() for one in given[0]):
        return None
    if any(one.dtype != outs[0].dtype for one in given[0]):
        return None
    rows = torch.cat([one.reshape(-1) for one in given[0]])
    one = {"output_tensor": outs[0], "input_tensor": rows}
    return _reduce_scatter_base({**values, **one}, nics, name)


# By operator: how it is cut, and which argument says how many bytes every rank sends.
_RULES: dict[str, tuple[Callable[[Values, _Nics, str], Cut | None], str]] = {
    "allreduce_": (_one, "tensors"),
    "broadcast_": (_one, "tensors"),
    "reduce_": (_one, "tensors"),
    "allgather_": (_allgather, "input_tensors"),
    "_allgather_base_": (_allgather_base, "input_tensor"),
    "allgather_into_tensor_coalesced_": (_coalesced(_allgather_base), "inputs"),
    "_reduce_scatter_base_": (_reduce_scatter_base, "input_tensor"),
    "reduce_scatter_tensor_coalesced_": (_coalesced(_reduce_scatter_base), "inputs"),
    "reduce_scatter_": (_reduce_scatter, "output_tensors"),
}


class _AllOf(Work):
    """The handle of a collective that was cut. torch has one of its own for futures, whose wait()
    raises nothing where they failed."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: Any = None) -> bool:
        if timeout is not None and timeout.total_seconds() > 0:
            done = threading.Event()
            self._future.add_done_callback(lambda _: done.set())
            if not done.wait(timeout.total_seconds()):
                raise RuntimeError(f"a collective did not end within {timeout}")
        self._future.wait()
        return True

    def get_future(self) -> Any:
        return self._future


class _Holding(ProcessGroup):
    """Makes of a handle that Python wrote one that C++ can hold: only torch's call of a process
    group that Python wrote does that."""

    def __init__(self) -> None:
        cast(Any, super()).__init__(0, 1)
        self._own = threading.local()

    def barrier(self, options: Any = None) -> Any:
        return self._own.work

    def holder(self, work: Work) -> Any:
        self._own.work = work
        try:
            return ProcessGroup.barrier(self, BarrierOptions())
        finally:
            del self._own.work


def _with_is_completed() -> None:
    """Lets Work.is_completed answer for our handles: torch does not ask Python about them."""
    kind: Any = Work
    known = kind.is_completed

    @functools.wraps(known)
    def is_completed(self: Any) -> bool:
        if known(self):
            return True
        try:
            return bool(self.get_future().done())
        except RuntimeError:  # Not every handle has a future.
            return False

    kind.is_completed = is_completed


def _future_of(futures: list[Any], finish: Callable[[], None], value: Any) -> Any:
    def ended(all_of: Any) -> Any:
        for one in all_of.value():
            one.value()  # Raises what went wrong.
        finish()
        return value if isinstance(value, (list, tuple)) else [value]

    return torch.futures.collect_all(futures).then(ended)


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

    _holding = _Holding()

    def __init__(self, name: str, nics: _Nics) -> None:
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
            rule = _RULES[self.name][0]
            cut = rule(values, self._nics, self.name)
        filled = values[self._arguments[0].name]
        if cut is not None:
            work = self._cut(group, backends, cut, filled)
        else:
            work = _begun(self.name, group._get_backend(_CPU), values)
            if self.name == "barrier" and (futures := self._nics.begun(group)):
                # A barrier ends after what the group began before it, as it does in gloo.
                future = _future_of([*futures, work.get_future()], lambda: None, [])
                work = self._holding.holder(_AllOf(future))
        return (filled, work.boxed()) if self._returns_tensors else work.boxed()

    def _cut(self, group: Any, backends: list[Any], cut: Cut, filled: Any) -> Any:
        parts, finish = cut
        works = [_begun(name, backends[k], values) for k, (name, values) in enumerate(parts)]
        future = _future_of([work.get_future() for work in works], finish, filled)
        self._nics.begun(group, future)
        return self._holding.holder(_AllOf(future))

    def _is_large(self, values: Values) -> bool:
        tensors = values[_RULES[self.name][1]]
        some = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        return sum(
            one.numel() * one.element_size() for one in some
        ) >= self._nics.least_bytes and all(one.layout == torch.strided for one in some)


def _is_gloo(group: Any) -> bool:
    try:
        return type(group._get_backend(_CPU)) is ProcessGroupGloo
    except RuntimeError:  # It has none for tensors in the processor's memory.
        return False


_KEPT: list[Any] = []


def install() -> None:
    """Changes torch.distributed before the first process group is made; does nothing where it has
    run before."""
    if _KEPT:
        return
    nics = _Nics(_text())
    if nics.ends:
        try:
            _KEPT.append(_replaced_kernels(nics))
            _with_is_completed()
        except Exception as error:
            _say(f"each collective is one NIC's: {error!r}")
            nics = _Nics(NOT_CUT)
    _KEPT.append(nics)
    _join_new_groups(nics)


def forget(group: Any = None) -> None:
    """To be called before a process group is ended; none: all of them."""
    if _KEPT:
        nics: _Nics = _KEPT[-1]
        nics.forget(None if group in (None, c10d.GroupMember.WORLD) else group.group_name)


def _text() -> str:
    """Returns the NICs and parts by which this rank would cut, or NOT_CUT."""
    text = os.environ[NICS_VARIABLE]
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    if text != NOT_CUT and version < _LEAST_TORCH:
        _say(f"torch {torch.__version__} gives each collective to one NIC; 2.13 can cut them")
        return NOT_CUT
    # Handles of NCCL's, beside which gloo may serve the processors, are not to be changed.
    return NOT_CUT if any(Path("/dev").glob("nvidia[0-9]*")) else text


def _replaced_kernels(nics: _Nics) -> Any:
    """Returns what must live on for them."""
    operators = {name: _Operator(name, nics) for name in _METHODS}
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced.
        for name, operator in operators.items():
            library.impl(name, operator, "CPU")
    return library


def _join_new_groups(nics: _Nics) -> None:
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def made(*args: Any, **options: Any) -> Any:
        found = make(*args, **options)
        if isinstance(found[0], ProcessGroup):
            nics.join(found[0], found[1])
        return found

    c10d._new_process_group_helper = made
