"""Forks programs, each a process of its own, from one process that has imported their modules.

    python forking_process.py FD MODULE...     FD: a socket, whose other end asks for programs;
                                               MODULE: imported before the first program

A program is asked for with a JSON message and four descriptors: standard input, output and error,
and one to which a line with the program's process id is written and, when it ends, a line with its
exit status. The message has these keys:

    program       the module, run as by `python -m`
    arguments     its arguments
    paths         searched for modules before all others
    environment   its environment
    before        null, or a module, its function and that function's argument: called before the
                  program is forked, so that all later programs have what it made, too

The process ends when the other end of the socket is closed.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LONGEST_MESSAGE_BYTES = 1 << 20


def main(descriptor: int, modules: Sequence[str]) -> dict[str, Any] | None:
    """Returns in each program's process with the message that asked for the program, and in the
    parent process with None when no more programs are asked for."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    for module in modules:
        if module == "torch":
            # torch's allocator is prepared before torch is loaded, as ranks do.
            from placewire.optimizer.capture.allocator import prepare_allocator

            prepare_allocator()
        importlib.import_module(module)
    _require_one_thread()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    with socket.socket(fileno=descriptor) as orders:
        while True:
            message, descriptors, _, _ = socket.recv_fds(orders, _LONGEST_MESSAGE_BYTES, 4)
            if not message:
                return None
            order = dict(json.loads(message))
            if order["before"] is not None:
                module, function, argument = order["before"]
                getattr(importlib.import_module(module), function)(argument)
                _require_one_thread()
            if os.fork() == 0:
                orders.close()
                _keep(*descriptors)
                return order
            for one in descriptors:
                os.close(one)


def _require_one_thread() -> None:
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, "any other thread would be missing in every program"


def _keep(stdin: int, stdout: int, stderr: int, told: int) -> None:
    """Returns in the program's process. The calling process, its keeper, waits for the program,
    writes its id and exit status to `told`, and ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) == 0:
        os.close(told)
        for number, one in enumerate((stdin, stdout, stderr)):
            os.dup2(one, number)
            os.close(one)
        return
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for one in (0, 1, 2, stdin, stdout, stderr):
            os.close(one)
        os.write(told, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    order = main(int(sys.argv[1]), sys.argv[2:])
    if order is not None:
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.path[:0] = order["paths"]
        sys.argv[1:] = order["arguments"]
        runpy.run_module(order["program"], run_name="__main__", alter_sys=True)
