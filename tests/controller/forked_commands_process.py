"""`controller` commands, each a process of its own, and imports are paid for once for all of them.

    python forked_commands_process.py     then a line of JSON for each command on standard input

    arguments   of the command
    output      file for what it prints
    dies_at     it kills itself (SIGKILL) at this step; a step is before or after each message to an
                agent, each change of the journal, and inside each of its transactions
    killed_after  it is killed from outside after so many seconds
    patches     values of modules in this process, as module.NAME: value
    environment   variables beside this process's own

and a line of JSON for each on standard output: its exit status, and how many steps it took.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

import rich._emoji_codes  # noqa: F401

import placewire.controller.agents.agents
import placewire.controller.apply
import placewire.controller.change.in_force
import placewire.controller.cli
import placewire.controller.launch.ranks
import placewire.controller.records.decision_in_force
import placewire.controller.records.journal
import placewire.controller.show.story
import placewire.controller.story.recovery
import placewire.controller.story.rollback

_POLL_SECONDS = 0.001


def count_steps(dies_at: int | None) -> Callable[[], int]:
    """From now on; returns what tells how many there were."""
    steps = itertools.count()
    taken = [0]

    def step() -> None:
        taken[0] = next(steps) + 1
        if taken[0] - 1 == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            step()
            result = function(*arguments, **named)
            step()
            return result

        return called

    ask = placewire.controller.agents.agents.Agents.ask

    async def asked(*arguments: Any, **named: Any) -> Any:
        step()
        answer = await ask(*arguments, **named)
        step()
        return answer

    placewire.controller.agents.agents.Agents.ask = asked  # type: ignore[method-assign]
    journal = placewire.controller.records.journal.Journal
    for name in ("begin", "decide", "keep", "note_removals", "record_run", "_record"):
        setattr(journal, name, around(getattr(journal, name)))
    return lambda: taken[0]


def _run(order: dict[str, Any]) -> None:
    """In the new process. Ends it."""
    sink = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order.get("environment", {}))
    tempfile.tempdir = None  # TMPDIR may be another one.
    for name, value in order.get("patches", {}).items():
        module, _, attribute = name.rpartition(".")
        assert hasattr(sys.modules[module], attribute), name
        setattr(sys.modules[module], attribute, value)
    steps = count_steps(order.get("dies_at"))
    sys.argv = ["controller", *order["arguments"]]
    code = 1
    try:
        placewire.controller.cli.main(order["arguments"])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        Path(order["output"] + ".steps").write_text(str(steps()))
        os._exit(code)


def _wait(pid: int, killed_after: float | None) -> int:
    deadline = None if killed_after is None else time.monotonic() + killed_after
    while True:
        ended, status = os.waitpid(pid, 0 if deadline is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if deadline is not None and time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            deadline = None
        else:
            time.sleep(_POLL_SECONDS)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        steps_file = Path(order["output"] + ".steps")
        steps_file.unlink(missing_ok=True)
        if (pid := os.fork()) == 0:
            _run(order)
        code = _wait(pid, order.get("killed_after"))
        steps = int(steps_file.read_text()) if steps_file.exists() else None
        print(json.dumps({"code": code, "steps": steps}), flush=True)


if __name__ == "__main__":
    main()
