"""Cuts each large collective of gloo between all NICs; gloo gives each to one.

This file runs in a script's own interpreter, where nothing of Placewire is installed: it imports
torch alone, and keeps to what Python 3.9 understands. torch.library is meant for what it does: it
takes the kernels of `c10d` for tensors in the processor's memory, and puts others in front. For
every process group it makes one of gloo on each NIC, when the group's first large collective comes.
A part of the elements then goes to each NIC, in proportion to `PLACEWIRE_NICS`. Whether one is cut
depends on sizes alone that all ranks see alike. So what only two ranks take part in is never cut,
nor what may have other sizes on other ranks: send and recv, all_to_all, gather and scatter.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import (
    BarrierOptions,
    HashStore,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    Work,
)

# NAME:PART,… of the NICs that all servers have, and the bytes from which on a collective is cut.
NICS_VARIABLE, LEAST_VARIABLE = "PLACEWIRE_NICS", "PLACEWIRE_CUT_FROM_BYTES"
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
    """names, ends: of each NIC its name, and up to which part of all elements it carries."""

    def __init__(self, text: str) -> None:
        each = [one.rpartition(":") for one in text.split(",")]
        parts = [float(part) for _, _, part in each]
        self.names = [name for name, _, _ in each]
        self.ends = [sum(parts[: k + 1]) / sum(parts) for k in range(len(parts))]
        self.least_bytes = int(os.environ.get(LEAST_VARIABLE, _LEAST_BYTES))
        # By the name of a process group its store and its groups on the NICs.
        self._groups: dict[str, tuple[Any, list[Any]]] = {}
        atexit.register(self._groups.clear)  # Those that live on when torch ends abort the process.

    def ranges(self, elements: int) -> list[tuple[int, int]]:
        """First and last element, exclusive, of each NIC's part, which is never empty."""
        found, start = [], 0
        for part in self.ends[:-1]:
            end = max(int(elements * part) // _ELEMENTS * _ELEMENTS, start + _ELEMENTS)
            found.append((start, end))
            start = end
        return [*found, (start, elements)]

    def groups(self, group: Any) -> list[Any]:
        """A process group for each NIC. All ranks of the group come here at the same collective."""
        name = group.group_name
        known = self._groups.get(name)
        store = next(s for one, (_, s) in c10d._world.pg_map.items() if one.group_name == name)
        if known is None or known[0] is not store:
            own = group._get_backend(_CPU)
            made = [
                _on_nic(PrefixStore(f"placewire/{name}/{k}", store), own, nic)
                for k, nic in enumerate(self.names)
            ]
            self._groups[name] = known = (store, made)
        return known[1]


def _on_nic(store: Any, like: Any, nic: str) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [ProcessGroupGloo.create_device(interface=nic)]
    options._threads = like.options._threads
    options._timeout = like.options._timeout
    backend = gloo(store, like.rank(), like.size(), options)
    group = ProcessGroup(store, like.rank(), like.size())
    group._register_backend(_CPU, ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    return group


def _flat(tensor: torch.Tensor, copies: Copies) -> torch.Tensor:
    """The elements in a row. copies: gets (tensor, row) where the row is a copy."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    row = tensor.contiguous().view(-1)
    copies.append((tensor, row))
    return row


def _copy_back(copies: Copies) -> None:
    with torch.no_grad():
        for tensor, row in copies:
            tensor.copy_(row.view(tensor.shape))


def _one(values: Values, nics: _Nics, name: str, key: str = "tensors") -> Cut | None:
    """Of allreduce_, broadcast_ and reduce_: one tensor, every part by itself."""
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


def _allgather_coalesced(values: Values, nics: _Nics, name: str) -> Cut | None:
    if len(values["inputs"]) != 1:
        return None
    one = {"output_tensor": values["outputs"][0], "input_tensor": values["inputs"][0]}
    return _allgather_base({**values, **one}, nics, name)


def _reduce_scatter_base(values: Values, nics: _Nics, name: str) -> Cut | None:
    """As gloo does it: sums all, and keeps this rank's row."""
    out, row = values["output_tensor"], values["input_tensor"].contiguous().view(-1).clone()
    mine = values["process_group"].rank()
    parts = []
    for a, b in nics.ranges(row.numel()):
        parts.append(("allreduce_", {**values, "tensors": [row[a:b]]}))

    def finish() -> None:
        _copy_back([(out, row.view(-1, out.numel())[mine])])

    return parts, finish


def _reduce_scatter_coalesced(values: Values, nics: _Nics, name: str) -> Cut | None:
    if len(values["inputs"]) != 1:
        return None
    one = {"output_tensor": values["outputs"][0], "input_tensor": values["inputs"][0]}
    return _reduce_scatter_base({**values, **one}, nics, name)


def _reduce_scatter(values: Values, nics: _Nics, name: str) -> Cut | None:
    outs, given = values["output_tensors"], values["input_tensors"]
    if len(outs) != 1 or any(one.numel() != outs[0].numel() for one in given[0]):
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
    "allgather_into_tensor_coalesced_": (_allgather_coalesced, "inputs"),
    "_reduce_scatter_base_": (_reduce_scatter_base, "input_tensor"),
    "reduce_scatter_tensor_coalesced_": (_reduce_scatter_coalesced, "inputs"),
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
        super().__init__(HashStore(), 0, 1)
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
    """Of a handle that C++ holds torch does not ask Python whether it has completed."""
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


def _future_of(works: list[Any], finish: Callable[[], None], value: Any) -> Any:
    def ended(all_of: Any) -> Any:
        for one in all_of.value():
            one.value()  # Raises what went wrong.
        finish()
        return value if isinstance(value, (list, tuple)) else [value]

    return torch.futures.collect_all([work.get_future() for work in works]).then(ended)


class _Operator:
    """One of c10d's operators: torch's own kernel, and ours in front of it."""

    _holding = _Holding()

    def __init__(self, name: str, nics: _Nics, all_of: dict[str, _Operator]) -> None:
        overload = getattr(torch.ops.c10d, name).default
        self.name, self._nics, self._all = name, nics, all_of
        self._arguments = overload._schema.arguments
        self._returns_tensors = len(overload._schema.returns) == 2
        self._kernel = torch.library.get_kernel(overload, "CPU")

    def own(self, keys: Any, values: Values) -> Any:
        """Runs torch's kernel."""
        given = [values.get(one.name, one.default_value) for one in self._arguments]
        return self._kernel.call_boxed(keys, *given)

    def __call__(self, keys: Any, *args: Any, **options: Any) -> Any:
        values = {one.name: one.default_value for one in self._arguments}
        values.update(options)
        for k, value in enumerate(args):
            values[self._arguments[k].name] = value
        boxed, group = values["process_group"], ProcessGroup.unbox(values["process_group"])
        cut = None
        if self._is_large(values) and group.size() > 1 and _is_gloo(group):
            rule = _RULES[self.name][0]
            cut = rule({**values, "process_group": group}, self._nics, self.name)
        if cut is None:
            return self.own(keys, {**values, "process_group": boxed})
        parts, finish = cut
        works = []
        for nic, (name, asked) in zip(self._nics.groups(group), parts):  # noqa: B905
            found = self._all[name].own(keys, {**asked, "process_group": nic.boxed()})
            works.append(Work.unbox(found[-1] if isinstance(found, (tuple, list)) else found))
        filled = values[self._arguments[0].name]
        future = _future_of(works, finish, filled)
        work = self._holding.holder(_AllOf(future)).boxed()
        return (filled, work) if self._returns_tensors else work

    def _is_large(self, values: Values) -> bool:
        tensors = values[_RULES[self.name][1]]
        some = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        return sum(
            one.numel() * one.element_size() for one in some
        ) >= self._nics.least_bytes and all(one.layout == torch.strided for one in some)


def _is_gloo(group: Any) -> bool:
    return type(group._get_backend(_CPU)) is ProcessGroupGloo


_KEPT: list[Any] = []


def install() -> None:
    """Does nothing where it has run before."""
    if _KEPT:
        return
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    if version < _LEAST_TORCH:
        sys.stderr.write(
            f"placewire: torch {torch.__version__} gives each collective to one NIC; from 2.13 on "
            "it can be cut between all\n"
        )
        return
    nics = _Nics(os.environ[NICS_VARIABLE])
    operators: dict[str, _Operator] = {}
    operators.update({name: _Operator(name, nics, operators) for name in _RULES})
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced.
        for name, operator in operators.items():
            library.impl(name, operator, "CPU", with_keyset=True)
    _with_is_completed()
    _KEPT.extend((library, operators))
