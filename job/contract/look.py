"""What a program answers that looks, where ranks will run, at what they would use: whether they
would refuse it. It changes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

from pydantic import Field

from placewire.frozen import Frozen

_LONGEST_WHAT = 20_000


class Problem(Frozen):
    """The ranks' user says it, and it is shown: a sentence with some paths, and a shorter one."""

    what: Annotated[str, Field(max_length=_LONGEST_WHAT)]
    remedy: Annotated[str, Field(max_length=1_000)]


class Answer(Frozen):
    """problem: why ranks would refuse what was looked at."""

    problem: Problem | None = None


def problem_of(what: str, remedy: str) -> Problem:
    """what: of any length, as where it has names of a file's own."""
    return Problem(what=what[:_LONGEST_WHAT], remedy=remedy)


def print_answer(look: Callable[[], Answer], path: str, seconds: float) -> None:
    """Where the path does not answer in so many seconds, says so on standard error, and ends this
    process with 1."""
    looking = ThreadPoolExecutor(1).submit(look)
    try:
        answer = looking.result(seconds)
    except TimeoutError:
        silent = f"{path} does not answer within {seconds:g} s"
        print(silent, file=sys.stderr, flush=True)
        os._exit(1)  # Nobody waits for that thread.
    print(answer.model_dump_json(), flush=True)
