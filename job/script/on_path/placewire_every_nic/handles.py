"""Handles (torch's Work) of collectives whose parts several groups run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, cast

import torch
from torch._C._distributed_c10d import BarrierOptions, ProcessGroup, Work


class AllOf(Work):
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


class Holding(ProcessGroup):
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
