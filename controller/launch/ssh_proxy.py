"""A program that carries an SSH connection, as ssh's ProxyCommand."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections import deque

# A proxy that has closed its output ends soon, and has said why before.
_END_SECONDS = 1.0
_LONGEST_LINE_BYTES = 4096
# ssh says what failed, and then what ends with it.
_LINES = 3


class Proxy:
    """connection: what is sent to it is the program's input, and the program's output comes from
    it. The program ends with it, as proxies do at the end of their input."""

    def __init__(self, command: str) -> None:
        """command: for a shell. Raises OSError."""
        self.connection, theirs = socket.socketpair()
        self._said: deque[str] = deque(maxlen=_LINES)
        with theirs:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                # Ctrl-C is for the controller, which then ends ranks over this connection.
                start_new_session=True,
            )
        self._listening = threading.Thread(target=self._listen, args=[process], daemon=True)
        self._listening.start()

    def complaint(self) -> str:
        """The last lines of its standard error."""
        self._listening.join(_END_SECONDS)
        return "; ".join(self._said)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process:  # It is waited for, too.
            while line := process.stderr.readline(_LONGEST_LINE_BYTES):
                self._said.append(line.decode(errors="replace").strip())
