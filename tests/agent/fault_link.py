"""The way to an agent under test: requests run at once, answers are kept and read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from placewire.frozen import Frozen
from tests.agent.fault_laws import Outcome


class InlineExecutor(ThreadPoolExecutor):
    """Runs what the service gives to threads at once, so that only the seed decides the order of
    steps."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class RepliesInMemory:
    """Stands in for the HTTP session: keeps what the agent answers."""

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {}

    @asynccontextmanager
    async def post(self, _: str, *, json: Any, **options: Any) -> Any:
        self.replies[json["id"]] = json
        yield _Answered()


class _Answered:
    status = 200

    @property
    def content(self) -> _Answered:
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield b"{}"


def outcome_of(reply: Any) -> Outcome:
    if reply is None:
        return "unknown"
    if reply["refusal"] is not None:
        return "refused"
    return "done" if reply["result"].get("succeeded", True) else "unknown"


def number_of(request: Frozen) -> object:
    desired = getattr(request, "desired", None)
    return desired.generation if desired is not None else getattr(request, "generation", "")


def gist_of(reply: Any) -> str:
    if reply is None:
        return "no answer"
    if reply["refusal"] is not None:
        return f"refused: {reply['refusal']['what'][:150]}"
    result = reply["result"]
    if "succeeded" in result:
        found = "; ".join(refusal["what"] for refusal in result["refusals"])
        return f"succeeded {result['succeeded']} {len(result['changes'])} changes {found[:300]}"
    return "done"
