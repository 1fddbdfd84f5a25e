"""A program that carries an SSH connection, as ssh's ProxyCommand."""

from __future__ import annotations

import select
import socket
import subprocess
import threading
from collections import deque

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.ssh_patience import Patience

# A jump host's sshd drops connections at random where ten wait to be let in (MaxStartups).
MOST_AT_ONCE = 8
_TURNS = threading.BoundedSemaphore(MOST_AT_ONCE)
# By then the jump host has let us in, and what is silent is a server behind it, for which no other
# has to wait.
_TURN_SECONDS = 5.0
# How often who waits looks whether that is still of use.
_LOOK_SECONDS = 0.5
# A proxy that has closed its output ends soon, and has said why before.
_END_SECONDS = 1.0
_LONGEST_LINE_BYTES = 4096
# ssh says what failed, and then what ends with it.
_LINES = 3
# So begins what ssh says besides, which hinders nothing: that it has noted a host key, or that a
# jump host's way to exchange keys is an old one.
_WARNINGS = ("Warning: ", "** ")


def proxy_in_turn(command: str, patience: Patience, where: str) -> Proxy:
    """Returns it when a server is heard through it, or is not heard for some time; few begin at
    once in this process. The patience is counted from its turn on. Raises OSError, and LaunchFailed
    where others keep it waiting for too long."""
    while not _TURNS.acquire(timeout=_LOOK_SECONDS):
        if patience.is_over:
            raise LaunchFailed(
                f"within {patience.seconds:g} s, no SSH connection to it was begun: no more than "
                f"{MOST_AT_ONCE} begin at once through what ~/.ssh/config names, and too many "
                "servers before it were silent",
                where=where,
                remedy="look at the servers that gave no answer, and at the jump host; this one "
                "was not asked",
            )
    try:
        patience.counts_anew()
        proxy = Proxy(command)
        patience.covers(proxy.connection)
        proxy.await_greeting(_TURN_SECONDS)
        return proxy
    finally:
        _TURNS.release()


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

    def await_greeting(self, seconds: float) -> None:
        """Returns when the server was heard, the program has ended, or these seconds are over."""
        greeting = select.poll()
        greeting.register(self.connection, select.POLLIN)
        greeting.poll(seconds * 1000)

    def complaint(self) -> str:
        """The last lines of its standard error that are no warnings of ssh's."""
        self._listening.join(_END_SECONDS)
        return "; ".join(self._said)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process:  # It is waited for, too.
            while line := process.stderr.readline(_LONGEST_LINE_BYTES):
                said = line.decode(errors="replace").strip()
                if said and not said.startswith(_WARNINGS):
                    self._said.append(said)
