"""Connects to one server over SSH, checks its host key, runs commands, starts and ends programs.

All calls block. Every command is POSIX shell, whatever shell the user has there. A program gets a
session of its own, so that all that it starts can be ended with it. Its environment comes from a
file, because others on the server can read command lines.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.own_runs import (
    IS_ROOT,
    OTHER,
    VARIABLE,
    Run,
    entering,
    is_usable_folder,
    leading,
    making,
    removing,
)
from placewire.controller.launch.programs import BECOME, described

_CONNECT_SECONDS = 10.0
_COMMAND_SECONDS = 20.0
_KEEPALIVE_SECONDS = 5
# The most that files of a user's shell may print before a command.
_GREETING_BYTES = 65_536
# TCP alone would notice only after a quarter of an hour that a server is gone.
_LOST_MILLISECONDS = 20_000
# The status that ssh, too, gives where the connection was lost.
CONNECTION_LOST = 255
# A shell gives the status 128 + N to a program that signal N ended.
_SIGNALLED = 128

_PROGRAM_FILE = "program.json"

# Placewire reports paramiko's errors itself, with a remedy.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


# Given the path of a program's own folder on the server: what python runs, and the folder's files.
InFolder = Callable[[str], tuple[Sequence[str], Mapping[str, bytes]]]


@dataclass(frozen=True)
class Login:
    """user: None for the user of this process. key, known_hosts: files; None for ssh's own."""

    user: str | None = None
    port: int = 22
    key: Path | None = None
    known_hosts: Path | None = None


@dataclass(frozen=True)
class Surroundings:
    """python: the interpreter of programs on servers. workdir: their folder; None for the user's
    home. environment: variables that are added to those that the user has there."""

    python: str
    workdir: str | None
    environment: Mapping[str, str]


class SshServer:
    """Thread-safe. Commands share a connection, one at a time; each program has a connection of its
    own, since sshd limits the number of sessions in one."""

    def __init__(self, name: str, address: str, login: Login) -> None:
        self.name = name
        self._address, self._login = address, login
        self._commands = threading.Lock()
        self._client: paramiko.SSHClient | None = None

    def run(self, script: str, given: bytes = b"") -> tuple[int, str, str]:
        """Runs a short command. Returns (status, output, errors). Raises LaunchFailed."""
        with self._commands:
            if self._client is None:
                self._client = self._connected()
            try:
                channel = self._begun(self._client, script)
                channel.sendall(given)
                channel.shutdown_write()
                return _said(channel)
            except (OSError, EOFError, paramiko.SSHException) as error:
                self._client.close()
                self._client = None
                raise self._lost(error) from error

    def start(self, around: Surroundings, words_and_files: InFolder, run: Run) -> Started:
        """Raises LaunchFailed."""
        folder = self._folder(run)
        client: paramiko.SSHClient | None = None
        try:
            words, files = words_and_files(folder)
            # A mark of the user's own would hide the run's, by which it is found and ended.
            own = {name: text for name, text in around.environment.items() if name != VARIABLE}
            for name, content in {**files, _PROGRAM_FILE: described(words, own)}.items():
                self._put(f"{folder}/{name}", content)
            client = self._connected()
            channel = self._begun(client, program_script(around, run, folder))
            leader = _first_line(channel)
            if not leader.isdigit():
                raise self._failed(
                    f"a program could not be started: {_said(channel)[2].strip() or leader}",
                    "look at job.workdir, and whether util-linux is installed there",
                )
            channel.settimeout(None)
            return Started(client, channel, int(leader), run, folder)
        except BaseException as error:
            if client is not None:
                client.close()
            with contextlib.suppress(LaunchFailed):
                self.run(removing(run, folder))
            if isinstance(error, (OSError, EOFError, paramiko.SSHException)):
                raise self._lost(error) from error
            raise

    def run_program(self, around: Surroundings, words: Sequence[str]) -> tuple[int, str, str]:
        """Runs a program that prints little. Returns as `run` does. Raises LaunchFailed."""
        started = self.start(around, lambda folder: (words, {}), Run(OTHER))
        try:
            _, said, complaint = _said(started.channel)
            return started.status(), said, complaint
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost(error) from error
        finally:
            started.close()

    def signal(self, started: Started, name: str) -> None:
        """Signals the program and all that it started. Raises LaunchFailed."""
        script = f"kill -s {name} -- -{started.leader} 2>&-"
        if name == "KILL":  # this also kills the leader, which would have removed the folder
            script += f"; {removing(started.run, started.folder)}"
        self.run(f"{script}; true")

    def _folder(self, run: Run) -> str:
        """Makes the run's folder. Raises LaunchFailed, also where programs would run as root and
        nobody asked for that by name."""
        maker = f"user {os.getuid()} of {socket.gethostname()}, process {os.getpid()}"
        root_too = self._login.user is not None
        status, said, complaint = self.run(making(run, maker, root_too=root_too))
        if status == IS_ROOT and not root_too:
            raise self._failed(
                "ranks would run there as root: the plan names no user, so that they run as the "
                "one who runs the controller",
                "name in launch.user a user without any privilege",
            )
        if status != 0:
            raise self._failed(
                f"no folder can be made there: {complaint.strip()}",
                "make room in its folder for temporary files",
            )
        folder = said.removesuffix("\n")
        if not is_usable_folder(folder):
            raise self._failed(
                f"its folder for temporary files is {folder!r}",
                "let TMPDIR of the ranks' user name an absolute path of printable characters",
            )
        return folder

    def _begun(self, client: paramiko.SSHClient, script: str) -> paramiko.Channel:
        """Begins the script. What is read from then on is its own: what files like ~/.bashrc print
        comes before. Raises LaunchFailed where the user's shell there does not run it."""
        transport = client.get_transport()
        if transport is None:
            raise EOFError("it was closed")
        channel = transport.open_session(timeout=_CONNECT_SECONDS)
        channel.settimeout(_COMMAND_SECONDS)
        begins = f"placewire-{secrets.token_hex(16)}"
        channel.exec_command(f"exec /bin/sh -c {shlex.quote(marked(begins, script))}")
        if (greeting := greeting_before(begins, channel.recv)) is not None:
            channel.close()
            if not transport.is_active():
                raise EOFError("it was closed")
            raise self._failed(
                f"the user's shell there runs no command; it printed {greeting[-200:]!r}",
                "let that user have a shell that runs commands, and whose files (~/.bashrc) print "
                "little and do not end it",
            )
        return channel

    def _put(self, path: str, content: bytes) -> None:
        status, _, complaint = self.run(f"umask 077 && cat > {shlex.quote(path)}", content)
        if status != 0:
            raise self._failed(f"{path} cannot be written: {complaint.strip()}", "make room there")

    def _connected(self) -> paramiko.SSHClient:
        login, client = self._login, paramiko.SSHClient()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())

        def failed(what: str, remedy: str) -> LaunchFailed:
            where = f"{self.name} ({self._address}, port {login.port})"
            return LaunchFailed(what, where=where, remedy=remedy)

        try:
            if login.known_hosts is None:
                client.load_system_host_keys()
            else:
                client.load_host_keys(str(login.known_hosts))
            stream = socket.create_connection((self._address, login.port), _CONNECT_SECONDS)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _LOST_MILLISECONDS)
            client.connect(
                self._address,
                login.port,
                login.user,
                key_filename=None if login.key is None else str(login.key),
                allow_agent=login.key is None,
                look_for_keys=login.key is None,
                timeout=_CONNECT_SECONDS,
                banner_timeout=_CONNECT_SECONDS,
                auth_timeout=_CONNECT_SECONDS,
                sock=stream,
            )
        except paramiko.BadHostKeyException as error:
            known_as = self._address if login.port == 22 else f"[{self._address}]:{login.port}"
            raise failed(
                "its SSH host key is not the known one: somebody may intercept the connection, or "
                "the server was installed anew",
                f"ask who runs it; then `ssh-keygen -R {known_as}` and add the new key",
            ) from error
        except paramiko.AuthenticationException as error:
            raise failed(
                f"SSH refuses {login.user or 'the user of this process'}: {error}",
                "name the user and a key that it accepts (launch.user, launch.key), or load the "
                "key into ssh-agent",
            ) from error
        except paramiko.SSHException as error:
            if "not found in known_hosts" not in str(error):
                raise failed(
                    f"SSH does not let us in: {error}",
                    "name a user and a key that it accepts (launch.user, launch.key); its sshd's "
                    "log says more",
                ) from error
            raise failed(
                "its SSH host key is not known",
                f"compare its fingerprint (`ssh-keyscan -p {login.port} {self._address} | "
                "ssh-keygen -lf -`), then add what ssh-keyscan prints to "
                f"{login.known_hosts or '~/.ssh/known_hosts'}",
            ) from error
        except OSError as error:
            raise failed(
                f"SSH cannot be reached: {error}",
                "look at its management address, its sshd and the network in between",
            ) from error
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(_KEEPALIVE_SECONDS)
        return client

    def _failed(self, what: str, remedy: str) -> LaunchFailed:
        return LaunchFailed(what, where=self.name, remedy=remedy)

    def _lost(self, error: Exception) -> LaunchFailed:
        return self._failed(
            f"the SSH connection was lost: {str(error) or type(error).__name__}",
            "look at the server and the network in between; ranks there end with their lease",
        )


@dataclass(frozen=True)
class Started:
    """A program on a server. leader: pid of its session's leader. folder: removed when it ends."""

    client: paramiko.SSHClient
    channel: paramiko.Channel
    leader: int
    run: Run
    folder: str

    def status(self) -> int:
        """Waits for the end. Returns the exit status, -N after signal N, or CONNECTION_LOST."""
        status = self.channel.recv_exit_status()
        if status < 0:
            return CONNECTION_LOST
        return _SIGNALLED - status if _SIGNALLED < status < CONNECTION_LOST else status

    def close(self) -> None:
        """Closes the connection. A running program goes on."""
        self.client.close()


def marked(begins: str, script: str) -> str:
    """Returns the script, which prints the line `begins` before its own output."""
    return f"printf '\\n%s\\n' {begins}; {script}"


def greeting_before(begins: str, receive: Callable[[int], bytes]) -> str | None:
    """Reads up to and with the line `begins`. Returns None, or, where that line does not come, what
    came instead."""
    end, read = f"\n{begins}\n".encode(), bytearray()
    while not read.endswith(end):
        if len(read) >= _GREETING_BYTES or not (byte := receive(1)):
            return read.decode(errors="replace").strip()
        read += byte
    return None


def _said(channel: paramiko.Channel) -> tuple[int, str, str]:
    """Waits for the end. Returns (status, output, errors)."""
    with channel.makefile("rb") as out, channel.makefile_stderr("rb") as err:
        said, complaint = out.read(), err.read()
    status = channel.recv_exit_status()
    return status, said.decode(errors="replace"), complaint.decode(errors="replace")


def program_script(around: Surroundings, run: Run, folder: str) -> str:
    """Returns what starts the program. The first line of output is the pid of the session's leader.
    The leader survives the signals that end the program politely, to return its status and remove
    its folder."""
    python = shlex.join([around.python, *BECOME, f"{folder}/{_PROGRAM_FILE}"])
    lead = (
        f"{leading(run, folder)}; echo $$; trap : TERM INT HUP; {python}; s=$?; "
        f"{removing(run, folder)}; exit $s"
    )
    enter = "" if around.workdir is None else f"cd -- {shlex.quote(around.workdir)} && "
    return f"{enter}exec setsid -w {entering(run, folder)} /bin/sh -c {shlex.quote(lead)}"


def _first_line(channel: paramiko.Channel) -> str:
    line = b""
    while not line.endswith(b"\n") and (byte := channel.recv(1)):
        line += byte
    return line.decode(errors="replace").strip()
