"""Starts ranks and other programs on servers over SSH, as the user that the plan names."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import paramiko

from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.launcher import (
    PROFILE_PROGRAM,
    RANK_PROGRAM,
    RunningProgram,
    not_ended,
)
from placewire.controller.launch.programs import (
    LONGEST_LINE_BYTES,
    TAIL_LINES,
    Ended,
    OnLine,
    follow,
    lines_of,
)
from placewire.controller.launch.ssh_connection import (
    CONNECTION_LOST,
    InFolder,
    Login,
    SshServer,
    Started,
    Surroundings,
)
from placewire.controller.uninterruptible import uninterruptible
from placewire.job.contract.specification import Hold, ProgramSpec
from placewire.optimizer.device_names import server_of

_Answer = TypeVar("_Answer")

# The interpreter that playbooks/agent.yaml installs.
INSTALLED_PYTHON = "/opt/placewire/.venv/bin/python"
_CHUNK_BYTES = 65_536
_MOST_AT_ONCE = 16
_END_SECONDS = 3
# sbin is where Debian has ip and tc, and not on every user's path.
_READ = 'PATH="$PATH:/usr/sbin:/sbin" exec python3 -I -'
_DRAIN_SECONDS = 5.0
_LOOK = """
import importlib.metadata as m, importlib.util as u, json, os, sys
import placewire.job.contract.specification
print(json.dumps({
    "placewire": m.version("placewire"), "torch": m.version("torch"),
    "model": not sys.argv[1] or u.find_spec(sys.argv[1]) is not None,
    "script": not sys.argv[2] or os.path.isfile(sys.argv[2]),
}))
"""
# The name of a program's folder on a server (ssh_connection.py makes it).
_FOLDER = re.compile(r"\S*/placewire-[A-Za-z0-9]{10}\b")
_LIST = 'ps -ww -u "$(id -u)" -o pid=,pgid=,etimes=,args='


class SshLauncher:
    """addresses: of the servers' sshd, by server. model: the module that ranks import, or None.
    script: the file that ranks run, or None. program: what python runs as a rank."""

    on_servers = True

    def __init__(
        self,
        addresses: Mapping[str, str],
        login: Login,
        around: Surroundings,
        *,
        model: str | None = None,
        script: str | None = None,
        program: Sequence[str] = RANK_PROGRAM,
    ) -> None:
        self._servers = {
            server: SshServer(server, address, login) for server, address in addresses.items()
        }
        self._around, self._program = around, tuple(program)
        self._model, self._script = model or "", script or ""
        self._leaders: set[tuple[str, int]] = set()

    def require_ready(self) -> None:
        """Raises LaunchFailed or UsageError, which name the server and what is missing there."""
        for problem in self._on_all(self._problem):
            if problem is not None:
                raise problem

    async def start(self, spec: ProgramSpec) -> SshProgram:
        files = _files_of(spec)

        def words_and_files(folder: str) -> tuple[Sequence[str], Mapping[str, bytes]]:
            paths = {field: f"{folder}/{name}" for field, (name, _) in files.items()}
            there = spec.model_copy(update=paths).model_dump_json().encode()
            contents = dict(files.values())
            return [*self._program, f"{folder}/spec.json"], {**contents, "spec.json": there}

        return await self._begin(self._servers[server_of(spec.device)], words_and_files, spec.rank)

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        program = await self._begin(self._servers[server], lambda folder: (words, {}), rank=-1)
        try:
            _, output, tail = await asyncio.gather(
                program.feed(given), program.whole_output(), follow(program.errors(), on_line)
            )
            return Ended(await program.wait(), output, tail)
        finally:
            program.kill()

    async def read(self, server: str, source: bytes) -> Ended:
        on = self._servers[server]
        status, said, complaint = await asyncio.to_thread(on.run, _READ, source)
        return Ended(status, said.encode(), tuple(complaint.splitlines()[-TAIL_LINES:]))

    def left(self) -> tuple[RunningProgram, ...]:
        found = self._on_all(lambda on: self._running(on, self._program, by_launcher=True))
        return tuple(rank for ranks in found for rank in ranks)

    def busy(self, server: str) -> tuple[RunningProgram, ...]:
        on = self._servers[server]
        programs = (self._program, PROFILE_PROGRAM)
        return tuple(rank for program in programs for rank in self._running(on, program))

    def end_left(self, ranks: Sequence[RunningProgram]) -> None:
        for server in sorted({rank.server for rank in ranks}):
            pids = " ".join(str(rank.pid) for rank in ranks if rank.server == server)
            groups = f"for p in {pids}; do ps -o pgid= -p $p; done | sort -u"
            folders = (
                f"for p in {pids}; do ps -ww -o args= -p $p; done | "
                "grep -o '/[^ ]*/placewire-[A-Za-z0-9]*' | sort -u"
            )
            # ps still lists, as Z, a process that has ended and that nobody has waited for yet.
            alive = f"ps -o stat=,pid= -p '{pids}' | sed -n '/^Z/!s/^[^ ]* *//p'"
            script = (
                f"alive() {{ {alive}; }}; f=$({folders}); g=$({groups}); "
                "for n in $g; do kill -s TERM -- -$n 2>&-; done; "
                f"k=0; while [ $k -lt {_END_SECONDS * 10} ]; do "
                '[ -z "$(alive)" ] && exit 0; sleep 0.1; k=$((k+1)); done; '
                "for n in $g; do kill -s KILL -- -$n 2>&-; done; sleep 0.3; rm -rf -- $f; alive"
            )
            _, said, _ = self._servers[server].run(script)
            if remaining := said.split():
                raise not_ended(remaining, server)

    async def _begin(self, on: SshServer, words_and_files: InFolder, rank: int) -> SshProgram:
        starting = asyncio.create_task(asyncio.to_thread(on.start, self._around, words_and_files))
        try:
            started = await asyncio.shield(starting)
        except asyncio.CancelledError:  # the thread starts the program all the same
            await uninterruptible(_end_unwanted(on, starting))
            raise
        self._leaders.add((on.name, started.leader))
        return SshProgram(rank, on, started)

    def _running(
        self, on: SshServer, program: Sequence[str], *, by_launcher: bool = False
    ) -> list[RunningProgram]:
        """Finds programs that this process did not start. by_launcher: only those whose group's
        leader names their folder, as a launcher makes them; what somebody typed must not be ended.
        """
        _, listed, _ = on.run(_LIST)
        rows = [line.split(maxsplit=3) for line in listed.splitlines()]
        commands = {int(pid): command for pid, _, _, command in rows}
        found = []
        for pid, group, seconds, command in rows:
            words = command.split()
            if words[1 : 1 + len(program)] != list(program):
                continue
            folder = _FOLDER.search(command)
            led = folder and folder[0] in commands.get(int(group), folder[0])
            if (on.name, int(group)) not in self._leaders and (led or not by_launcher):
                found.append(RunningProgram(on.name, int(pid), float(seconds)))
        return found

    def _problem(self, on: SshServer) -> LaunchFailed | UsageError | None:
        def problem(what: str, remedy: str) -> UsageError:
            return UsageError(what, where=on.name, remedy=remedy)

        words = ["-c", _LOOK, self._model, self._script]
        try:
            status, said, complaint = on.run_program(self._around, words)
        except LaunchFailed as error:
            return error
        if status != 0:
            last = (complaint.strip().splitlines() or [f"exit {status}"])[-1]
            return problem(
                f"ranks cannot run there: {last}",
                "look at job.python and job.workdir on that server; playbooks/agent.yaml installs "
                f"{INSTALLED_PYTHON}",
            )
        found = json.loads(said)
        for package in ("placewire", "torch"):
            here = importlib.metadata.version(package)
            # Behind the plus, builds of one release differ for CPUs and GPUs.
            if found[package].split("+")[0] != here.split("+")[0]:
                return problem(
                    f"{package} {found[package]} is installed there, and {here} here",
                    "install the same release on the controller and on every server",
                )
        if not found["model"]:
            return problem(
                f"module {self._model!r} is not found there",
                "bring it to that server, and name its folder in job.workdir, or in PYTHONPATH in "
                "job.env",
            )
        if not found["script"]:
            return problem(
                f"script {self._script!r} is not found there",
                "bring it to that server; job.script is looked for in job.workdir",
            )
        return None

    def _on_all(self, ask: Callable[[SshServer], _Answer]) -> list[_Answer]:
        with ThreadPoolExecutor(max_workers=_MOST_AT_ONCE) as pool:
            return list(pool.map(ask, self._servers.values()))


class SshProgram:
    """A started program on a server, for asyncio: two threads read its output and its errors."""

    def __init__(self, rank: int, on: SshServer, started: Started) -> None:
        self.rank, self.server = rank, on.name
        self._on, self._started = on, started
        self._loop = asyncio.get_running_loop()
        self._output = asyncio.StreamReader(limit=LONGEST_LINE_BYTES)
        self._errors = asyncio.StreamReader(limit=LONGEST_LINE_BYTES)
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._errors_read = threading.Event()
        for read in (self._read_output, self._read_errors):
            threading.Thread(target=read, name=f"ssh {self.server}", daemon=True).start()

    def output(self) -> AsyncIterator[bytes]:
        return lines_of(self._output)

    async def whole_output(self) -> bytes:
        return await self._output.read()

    def errors(self) -> AsyncIterator[bytes]:
        return lines_of(self._errors)

    def tell(self, hold: Hold) -> None:
        with contextlib.suppress(OSError, paramiko.SSHException):
            self._started.channel.sendall(hold.model_dump_json().encode() + b"\n")

    async def feed(self, given: bytes) -> None:
        """Sends the whole standard input, and closes it."""

        def send() -> None:
            with contextlib.suppress(OSError, paramiko.SSHException):  # it does not read all of it
                self._started.channel.sendall(given)
                self._started.channel.shutdown_write()

        await asyncio.to_thread(send)

    async def wait(self) -> int:
        return await asyncio.shield(self._exit)

    def terminate(self) -> None:
        self._signal("TERM")

    def kill(self) -> None:
        self._signal("KILL")

    def _signal(self, name: str) -> None:
        """Signals from another thread, so that the caller does not wait for the server."""
        if not self._exit.done():
            sending = threading.Thread(
                target=self._send_signal, args=[name], name=f"ssh {self.server} {name}"
            )
            sending.start()

    def _send_signal(self, name: str) -> None:
        with contextlib.suppress(LaunchFailed):  # the server is out of reach: the lease ends ranks
            self._on.signal(self._started, name)

    def _read_output(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody reads any more
            self._pump(self._started.channel.recv, self._output)
            status = self._started.status()
            if status == CONNECTION_LOST:
                self._send_signal("KILL")
                lost = f"the SSH connection to {self.server} was lost\n".encode()
                self._loop.call_soon_threadsafe(self._output.feed_data, lost)
            self._loop.call_soon_threadsafe(self._output.feed_eof)
            self._loop.call_soon_threadsafe(self._exit.set_result, status)
        self._errors_read.wait(_DRAIN_SECONDS)
        self._started.close()

    def _read_errors(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._pump(self._started.channel.recv_stderr, self._errors)
            self._loop.call_soon_threadsafe(self._errors.feed_eof)
        self._errors_read.set()

    def _pump(self, receive: Callable[[int], bytes], stream: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := receive(_CHUNK_BYTES):
                self._loop.call_soon_threadsafe(stream.feed_data, data)


async def _end_unwanted(on: SshServer, starting: asyncio.Task[Started]) -> None:
    with contextlib.suppress(LaunchFailed):  # it was not started, or its lease ends it
        with contextlib.closing(await starting) as started:
            await asyncio.to_thread(on.signal, started, "KILL")


def _files_of(spec: ProgramSpec) -> dict[str, tuple[str, bytes]]:
    """Returns the files that a specification names, by field: (name on the server, content)."""
    found = {}
    for field in ("placement_file", "graph_file"):
        if (path := getattr(spec, field, None)) is not None:
            endings = "".join(Path(path).suffixes[-2:])
            found[field] = f"{field.removesuffix('_file')}{endings}", Path(path).read_bytes()
    return found
