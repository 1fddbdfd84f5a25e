"""Handles (torch's Work) of collectives whose parts several groups run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, cast

import torch
from torch._C._distributed_c10d import BarrierOptions, ProcessGroup, Work

# Handles that only C++ holds, in a torch that does not keep their Python part alive.
_KEPT: set[Work] = set()
_BARRIER: Any = ProcessGroup.barrier  # Before it is replaced.
# The calls of a process group that return a handle to Python, which then holds it itself.
_CALLS = (
    "allreduce", "broadcast", "reduce", "allgather", "_allgather_base", "_reduce_scatter_base",
    "reduce_scatter", "barrier", "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
)  # fmt: skip


class AllOf(Work):
    """The handle of a collective that was cut. torch has one of its own for futures, whose wait()
    raises nothing where they failed. waits: how often C++ waits for it."""

    def __init__(self, future: Any, waits: int = 1) -> None:
        super().__init__()
        self._future, self._waits = future, waits

    def wait(self, timeout: Any = None) -> bool:
        self._waits -= 1
        if self._waits <= 0:
            _KEPT.discard(self)
        if timeout is not None and timeout.total_seconds() > 0:
            done = threading.Event()
            self._future.add_done_callback(lambda _: done.set())
            if not done.wait(timeout.total_seconds()):
                raise RuntimeError(f"a collective did not end within {timeout}")
        self._future.wait()
        if self in _KEPT:
            # C++ may never wait for its other tensors: torch keeps a handle whose output nobody
            # uses for ever. The future would keep the tensors with it.
            self._future = torch.futures.Future()
            self._future.set_result(None)
        return True

    def get_future(self) -> Any:
        _KEPT.discard(self)
        return self._future


class Holding(ProcessGroup):
    """Makes of a handle that Python wrote one that C++ can hold. From torch 2.7 on torch's call of
    a process group that Python wrote does that. An older one gives the handle back as it is."""

    def __init__(self) -> None:
        cast(Any, super()).__init__(0, 1)
        self._own = threading.local()

    def barrier(self, options: Any = None) -> Any:
        return self._own.work

    def holder(self, work: Work) -> Any:
        self._own.work = work
        try:
            held = _BARRIER(self, BarrierOptions())
        finally:
            del self._own.work
        return kept(work) if held is work else held


def kept(work: Work) -> Work:
    """Keeps a handle until Python holds it, or C++ has waited for it or has its future."""
    _KEPT.add(work)
    return work


def with_handles_of_python() -> None:
    """Lets Python alone hold the handles that it gets, where they are kept for C++."""
    work = AllOf(torch.futures.Future())
    if Holding().holder(work) is not work:
        return
    _KEPT.discard(work)
    for name in _CALLS:
        setattr(ProcessGroup, name, _handed_over(name, getattr(ProcessGroup, name)))


def _handed_over(name: str, call: Any) -> Any:
    @functools.wraps(call)
    def called(self: Any, *args: Any, **options: Any) -> Any:
        work = call(self, *args, **options)
        _KEPT.discard(work)
        return work

    # By its name torch knows that a group which Python wrote asks for what C++ does.
    function: Any = called
    function.__code__ = function.__code__.replace(co_name=name)
    return function


def with_is_completed() -> None:
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


def future_of(futures: list[Any], finish: Callable[[], None], value: Any) -> Any:
    def ended(all_of: Any) -> Any:
        for one in all_of.value():
            one.value()  # Raises what went wrong.
        finish()
        return value if isinstance(value, (list, tuple)) else [value]

    return torch.futures.collect_all(futures).then(ended)
