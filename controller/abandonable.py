"""Runs blocking calls so that a cancellation ends the wait for them at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")

_WAITS = 10


async def abandonable(call: Callable[[], Result], what: str = "a blocking call") -> Result:
    """Returns or raises what the call does, which runs in a thread of its own. Where the caller is
    cancelled, the call is left to itself, so it must be one that only reads, or whose effects do no
    harm. Unlike a thread of `asyncio.to_thread`, it does not keep this process from ending."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result: Result | None = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # The event loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=what, daemon=True).start()
    return await ended


def each_in_a_thread(
    calls: Sequence[Callable[[], Result]],
    at_once: int,
    *,
    seconds: float,
    otherwise: Callable[[int], Result],
) -> list[Result]:
    """Makes the calls, so many at once, and returns their results in this order, or raises what the
    first of them raised. seconds: for all of it; then no more of them are begun, and those that
    have not ended are left to themselves. otherwise: gives the result of such a call, by its
    number. Threads do not keep this process from ending."""
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}
    waiting, lock = iter(enumerate(calls)), threading.Lock()
    is_over, ended_one = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        while True:
            with lock:
                taken = None if is_over.is_set() else next(waiting, None)
            if taken is None:
                ended_one.release()
                return
            number, call = taken
            try:
                results[number] = call()
            except BaseException as error:
                errors[number] = error

    running = min(at_once, len(calls))
    for _ in range(running):
        threading.Thread(target=work, daemon=True).start()
    # The wait is many short ones, of which one alone passes while this process is held up.
    for _ in range(_WAITS):
        until = time.monotonic() + seconds / _WAITS
        while running and ended_one.acquire(timeout=max(0.0, until - time.monotonic())):
            running -= 1
    with lock:
        is_over.set()
    ended, raised = dict(results), dict(errors)
    if raised:
        raise raised[min(raised)]
    return [ended[k] if k in ended else otherwise(k) for k in range(len(calls))]
