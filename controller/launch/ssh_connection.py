"""Runs commands on one server over SSH, and starts and ends programs.

All calls block, and only the wait for the end of a started program has no limit. Every command is
POSIX shell, whatever shell the user has there. A program gets a session of its own, so that all
that it starts can be ended with it. Its environment comes from a file, because others on the server
can read command lines.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import paramiko

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.own_runs import (
    IS_ROOT,
    OTHER,
    VARIABLE,
    LeftRun,
    Run,
    asking,
    ending,
    ending_strays,
    entering,
    is_row,
    is_usable_folder,
    killing,
    leading,
    making,
    removing,
)
from placewire.controller.launch.programs import BECOME, described
from placewire.controller.launch.ssh_connecting import (
    LOST_SECONDS,
    Login,
    connected,
    is_open,
    no_answer,
    socket_of,
)
from placewire.controller.launch.ssh_patience import Patience
from placewire.job.contract.specification import SCRIPT_GONE_SECONDS

_SESSION_SECONDS = 10.0
# For all of a short command, the connection included, on a server that is busy.
ANSWER_SECONDS = 60.0
# To end a script as well. The wait for it is counted in turns, which take longer on a busy server.
ENDING_SECONDS = ANSWER_SECONDS + 2 * SCRIPT_GONE_SECONDS
# A program that imports torch, from a disk or a file server that is slow at first.
PROGRAM_SECONDS = 300.0
# A file of a job goes at least so fast to a server whose management network is slow.
_SLOWEST_BYTES_PER_SECOND = 100_000
# The most that files of a user's shell may print before a command.
_GREETING_BYTES = 65_536
# The most that a short command may print; what a server's state takes is a tenth of it.
_ANSWER_BYTES = 64 * 2**20
# The status that ssh, too, gives where the connection was lost.
CONNECTION_LOST = 255
# A shell gives the status 128 + N to a program that signal N ended.
_SIGNALLED = 128

_PROGRAM_FILE = "program.json"

# Given the path of a program's own folder on the server: what python runs, and the folder's files.
InFolder = Callable[[str], tuple[Sequence[str], Mapping[str, bytes]]]


@dataclass(frozen=True)
class Surroundings:
    """python: the interpreter of programs on servers. workdir: their folder; None for the user's
    home. environment: variables that are added to those that the user has there."""

    python: str
    workdir: str | None
    environment: Mapping[str, str]

    @property
    def unmarked(self) -> Mapping[str, str]:
        """The environment without a mark of the user's own, which would hide a run's, by which it
        is found and ended."""
        return {name: text for name, text in self.environment.items() if name != VARIABLE}


class SshServer:
    """Thread-safe. Commands share a connection, one at a time; each program has a connection of its
    own, since sshd limits the number of sessions in one."""

    def __init__(self, name: str, address: str, login: Login) -> None:
        self.name = name
        self._address, self._login = address, login
        self._commands = threading.Lock()
        self._client: paramiko.SSHClient | None = None

    def run(
        self, script: str, given: bytes = b"", seconds: float = ANSWER_SECONDS
    ) -> tuple[int, str, str]:
        """Runs a short command. Returns (status, output, errors). Raises LaunchFailed, also where
        all of it takes longer than these seconds."""
        with self._commands, Patience(seconds) as patience:
            try:
                if self._client is not None and not is_open(self._client):
                    self._client.close()  # It ended between two commands: none is lost with it.
                    self._client = None
                if self._client is None:
                    self._client = self._connected(patience)
                else:
                    patience.covers(socket_of(self._client))
                channel = self._begun(self._client, script, patience)
                channel.sendall(given)
                channel.shutdown_write()
                said = _said(channel)
                if patience.is_over:
                    raise EOFError("it was closed")
                return said
            except LaunchFailed:
                raise
            except Exception as error:  # paramiko raises whatever it met in what a server sent
                if self._client is not None:
                    self._client.close()
                    self._client = None
                raise self._lost(error, patience) from error

    def start(
        self,
        around: Surroundings,
        words_and_files: InFolder,
        run: Run,
        lost_seconds: float = LOST_SECONDS,
    ) -> Started:
        """lost_seconds: for how long a break of the network leaves its connection. Raises
        LaunchFailed."""
        folder = self._folder(run)
        client: paramiko.SSHClient | None = None
        try:
            words, files = words_and_files(folder)
            program = described(words, around.unmarked)
            for name, content in {**files, _PROGRAM_FILE: program}.items():
                self._put(f"{folder}/{name}", content)
            with Patience(ANSWER_SECONDS) as patience:
                try:
                    client = self._connected(patience, lost_seconds)
                    channel = self._begun(client, program_script(around, run, folder), patience)
                    leader = _first_line(channel)
                    if not is_row([leader], 1, numbers=1):
                        complaint = _said(channel)[2].strip()
                        if patience.is_over:
                            raise EOFError("it was closed")
                        raise self._failed(
                            f"a program could not be started: {complaint or leader}",
                            "look at job.workdir, and whether util-linux is installed there",
                        )
                except LaunchFailed:
                    raise
                except Exception as error:  # paramiko raises whatever it met in what a server sent
                    raise self._lost(error, patience) from error
            return Started(client, channel, int(leader), run, folder)
        except BaseException:
            if client is not None:
                client.close()
            with contextlib.suppress(LaunchFailed):
                self.run(removing(run, folder))
            raise

    def run_program(
        self, around: Surroundings, words_and_files: InFolder, seconds: float = PROGRAM_SECONDS
    ) -> tuple[int, str, str]:
        """Runs a program that prints little. Returns as `run` does. Raises LaunchFailed, also where
        the program takes longer than these seconds; then it is ended."""
        started = self.start(around, words_and_files, Run(OTHER))
        with contextlib.closing(started), Patience(seconds) as patience:
            patience.covers(socket_of(started.client))
            try:
                _, said, complaint = _said(started.channel)
                status = started.status()
            except LaunchFailed:
                raise
            except Exception as error:  # paramiko raises whatever it met in what a server sent
                raise self._lost(error, patience) from error
            if not patience.is_over:
                return status, said, complaint
            with contextlib.suppress(LaunchFailed):
                self.kill(started)
            raise self._failed(
                f"its Python gave no answer within {seconds:g} s",
                "look at job.python and job.workdir there: a file server that is away, or a "
                "package that hangs when it is imported",
            )

    def terminate(self, started: Started) -> None:
        """Asks the program to end. Raises LaunchFailed."""
        self.run(f"{asking(started.run, started.leader)}; true")

    def kill(self, started: Started) -> None:
        """Kills the program and all that it started. Raises LaunchFailed."""
        # This also kills the leader, which would have removed the folder.
        strays, folder = ending_strays(started.run), removing(started.run, started.folder)
        self.run(f"{killing(started.run, started.leader)}; {strays}; {folder}; true")

    def end(self, started: Started) -> None:
        """Asks the program to end, waits for as long as it may take, and kills what is left. Raises
        LaunchFailed."""
        self.run("true")  # Where the server is out of reach, that is known sooner.
        left = LeftRun(started.run, started.folder, started.leader, started.leader, seconds=0.0)
        self.run(ending([left]), seconds=ENDING_SECONDS)

    def _folder(self, run: Run) -> str:
        """Makes the run's folder. Raises LaunchFailed, also where programs would run as root and
        nobody asked for that by name."""
        maker = f"user {os.getuid()} of {socket.gethostname()}, process {os.getpid()}"
        root_too = self._login.user is not None
        status, said, complaint = self.run(making(run, maker, root_too=root_too))
        if status == IS_ROOT and not root_too:
            raise self._failed(
                "ranks would run there as root: the plan names no user, so that they run as whom "
                "~/.ssh/config names, or else as the one who runs the controller",
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

    def _begun(
        self, client: paramiko.SSHClient, script: str, patience: Patience
    ) -> paramiko.Channel:
        """Begins the script. What is read from then on is its own: what files like ~/.bashrc print
        comes before. Raises LaunchFailed where the user's shell there does not run it."""
        transport = client.get_transport()
        if transport is None:
            raise EOFError("it was closed")
        channel = transport.open_session(timeout=_SESSION_SECONDS)
        channel.settimeout(None)  # the whole has a limit
        begins = f"placewire-{secrets.token_hex(16)}"
        channel.exec_command(f"exec /bin/sh -c {shlex.quote(marked(begins, script))}")
        if (greeting := greeting_before(begins, channel.recv)) is not None:
            channel.close()
            if patience.is_over or not transport.is_active():
                raise EOFError("it was closed")
            raise self._failed(
                f"the user's shell there runs no command; it printed {greeting[-200:]!r}",
                "let that user have a shell that runs commands, and whose files (~/.bashrc) print "
                "little and do not end it",
            )
        return channel

    def _put(self, path: str, content: bytes) -> None:
        seconds = ANSWER_SECONDS + len(content) / _SLOWEST_BYTES_PER_SECOND
        status, _, complaint = self.run(f"umask 077 && cat > {shlex.quote(path)}", content, seconds)
        if status != 0:
            raise self._failed(f"{path} cannot be written: {complaint.strip()}", "make room there")

    def _connected(
        self, patience: Patience, lost_seconds: float = LOST_SECONDS
    ) -> paramiko.SSHClient:
        return connected(self.name, self._address, self._login, patience, lost_seconds)

    def _failed(self, what: str, remedy: str) -> LaunchFailed:
        return LaunchFailed(what, where=self.name, remedy=remedy)

    def _lost(self, error: Exception, patience: Patience) -> LaunchFailed:
        if patience.is_over:
            return no_answer(self.name, patience.seconds)
        known = isinstance(error, OSError | EOFError | paramiko.SSHException)
        kind = "" if known and str(error) else type(error).__name__
        return self._failed(
            f"the SSH connection was lost: {': '.join(filter(None, (kind, str(error))))}",
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

    def is_lost(self) -> bool:
        """Waits for the end. Returns whether the connection came to it before the program, which
        may end with the same status itself."""
        return self.channel.recv_exit_status() < 0

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
    """Waits for the end. Returns (status, output, errors). Raises EOFError where that is more than
    an answer has: the shell there is the ranks' user's, and could fill this machine's memory."""
    read = []
    with channel.makefile("rb") as out, channel.makefile_stderr("rb") as err:
        for stream in (out, err):
            read.append(stream.read(_ANSWER_BYTES + 1))
            if len(read[-1]) > _ANSWER_BYTES:
                raise EOFError(f"the server printed more than {_ANSWER_BYTES // 2**20} MiB")
    said, complaint = read
    status = channel.recv_exit_status()
    return status, said.decode(errors="replace"), complaint.decode(errors="replace")


def program_script(around: Surroundings, run: Run, folder: str) -> str:
    """Returns what starts the program. The first line of output is the pid of the session's leader.
    The leader survives the signals that end the program politely, to return its status, end what
    the program left behind, and remove its folder."""
    python = shlex.join([around.python, *BECOME, f"{folder}/{_PROGRAM_FILE}"])
    lead = (
        f"{leading(run, folder)}; echo $$; trap : TERM INT HUP; {python}; s=$?; "
        f"{ending_strays(run)}; {removing(run, folder)}; exit $s"
    )
    enter = "" if around.workdir is None else f"cd -- {shlex.quote(around.workdir)} && "
    return f"{enter}exec setsid -w {entering(run, folder)} /bin/sh -c {shlex.quote(lead)}"


def _first_line(channel: paramiko.Channel) -> str:
    line = b""
    while not line.endswith(b"\n") and (byte := channel.recv(1)):
        line += byte
    return line.decode(errors="replace").strip()
