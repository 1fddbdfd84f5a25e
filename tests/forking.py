"""Starts our programs without the seconds that their imports take.

They are forked from a process that has imported their modules; see forking_process.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PROGRAM = Path(__file__).with_name("forking_process.py")


class Forking:
    """A process that has imported `modules`. It ends with the present process, or when closed.

    around: words before its command, like those that enter a namespace. environment: that of its
    programs where `start` names no other; by default the present process'.
    """

    def __init__(
        self,
        *modules: str,
        around: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.environment = dict(environment or os.environ)
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [*around, sys.executable, str(_PROGRAM), str(its.fileno()), *modules],
                stdin=subprocess.DEVNULL, cwd=_PROGRAM.parents[1], pass_fds=[its.fileno()],
                # Threads would be missing in the forked programs.
                env={**self.environment, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def start(
        self,
        program: str,
        *arguments: str,
        paths: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        join_errors: bool = False,
        before: tuple[str, str, str] | None = None,
    ) -> Forked:
        """Starts the program as `python -m PROGRAM ARGUMENTS...` with an empty standard input.

        paths: searched for modules before others. join_errors: standard error is standard output.
        before: a module, its function and that function's argument; it is called before the program
        is forked, in the process that all programs are forked from.
        """
        read, write = os.pipe()
        told, tell = os.pipe()
        errors = os.memfd_create("errors")
        nothing = os.open(os.devnull, os.O_RDONLY)
        order = {
            "program": program,
            "arguments": arguments,
            "paths": [*paths],
            "environment": dict(environment or self.environment),
            "before": before,
        }
        given = (nothing, write, write if join_errors else errors, tell)
        socket.send_fds(self._socket, [json.dumps(order).encode()], given)
        for descriptor in (nothing, write, tell):
            os.close(descriptor)
        return Forked(read, errors, told)


class Forked:
    """A started program, with the methods of subprocess.Popen that tests use."""

    returncode: int | None = None

    def __init__(self, stdout: int, errors: int, told: int) -> None:
        self.stdout = os.fdopen(stdout, "rb")
        self._errors, self._told = os.fdopen(errors, "rb"), os.fdopen(told, "rb")
        self.pid = int(self._told.readline())
        self._output = b""
        self._reader = threading.Thread(target=self._read, daemon=True)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = int(self._told.readline())
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # Its keeper may know that it has ended, and not have told it yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Returns the unread output and the errors of a program that has ended. Raises
        TimeoutExpired where it has not."""
        if self._reader.ident is None:
            self._reader.start()
        self._reader.join(timeout)
        if self._reader.is_alive():
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        self.wait()
        self._errors.seek(0)
        with self._errors, self.stdout, self._told:
            return self._output, self._errors.read()

    def _read(self) -> None:
        self._output = self.stdout.read()
