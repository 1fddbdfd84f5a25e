"""Runs a script of the user's own on this server, in processes started as torchrun starts them.

A process finds in its environment what torchrun's static rendezvous gives it (RANK, LOCAL_RANK and
so on; rank 0 opens the store at MASTER_ADDR), and which interfaces gloo and NCCL are to use. What a
process prints is passed on behind its RANK; what the rails carry is reported meanwhile.
When this program ends, it ends all that its processes started, and gives these as long for that as
torchrun would, with one SIGTERM. Each of them is in a process group of its own, as under torchrun:
a signal to this program's group is meant for this program. When it is killed with SIGKILL, the
kernel ends its own processes, but of what these started only what they themselves tied to them;
over SSH, the shell that leads the run ends the rest.
"""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO

from placewire.agent.interface_counters import read_counters
from placewire.descriptors import raised_limit
from placewire.job.contract.rdma import rdma_choices
from placewire.job.contract.signal_name import signal_name
from placewire.job.contract.specification import (
    SCRIPT_END_SECONDS,
    Carried,
    Failed,
    Finished,
    ScriptSpec,
    Started,
    Traffic,
)
from placewire.job.errors import JobError
from placewire.job.script.descendants import adopt_orphans, has_members, kill_descendants
from placewire.job.script.environment import (
    ON_PATH,
    cuts_collectives,
    given_environment,
    has_gpus,
    passed_on,
    script_environment,
    script_rank,
)
from placewire.job.script.stalled_rails import StalledRails
from placewire.job.supervision.events import Events
from placewire.visible import last_state

TELL_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LOOK_AT_RAILS_SECONDS = 2.0
# For processes that were killed to end.
_KILL_SECONDS = 2.0
# What the processes printed is there to its end once they are gone; reading it takes a busy machine
# a while. Only a stranger that holds the pipe open is waited for that long.
_READ_SECONDS = 30.0
# As above, where the launcher waits for this program's end, up to SCRIPT_GONE_SECONDS in all.
_READ_LAST_SECONDS = 10.0
# A longer line is passed on in parts, each of which is marked like a line.
_LONGEST_LINE_BYTES = 65_536
# What names the interfaces that the script is to use.
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# gloo has a socket for each process and each name in GLOO_SOCKET_IFNAME, in every group; a shell's
# usual limit of 1024 would be too low for some dozens of processes. More would slow down programs
# that close all that they might have open.
_MOST_DESCRIPTORS = 65_536
_INTERRUPTIONS = (signal.SIGTERM, signal.SIGINT)


def _notes(spec: ScriptSpec) -> tuple[str, ...]:
    """Sentences on how the script will use its NICs."""
    given = given_environment(spec)
    taken = " ".join(spec.rail_interfaces[rail].rail for rail in spec.rail_pattern)
    several = f"{spec.processes} processes" if spec.processes > 1 else "1 process"
    notes = [f"{several}; gloo's collectives take rails {taken} in turn"]
    if "GLOO_SOCKET_IFNAME" in given:
        notes = [several]
    elif len(spec.rail_parts) > 1:
        if has_gpus():
            notes.append("none is cut: this server has GPUs, and NCCL uses all NICs by itself")
        elif cuts_collectives(spec):
            rails_parts = zip(spec.rail_interfaces, spec.rail_parts, strict=True)
            parts = ", ".join(f"{one.rail} {part:.0%}" for one, part in rails_parts)
            least = f"{spec.cut_from_bytes / 1024:.0f} KiB"
            notes = [f"{several}; collectives from {least} on are cut: {parts}"]
        else:
            notes.append(
                f"none is cut: {shlex.join(spec.python)} does not import from PYTHONPATH what is "
                f"in {ON_PATH}; a root of its own needs /proc, or that folder"
            )
    notes += [
        f"{name} is set by job.env or by the server itself, and may leave out rails of the plan"
        for name in _INTERFACES
        if name in given
    ]
    notes += [
        f"{name} is {instead} here, not {given[name]} as the server has it: RDMA passes by "
        "every queue"
        for name, instead in rdma_choices(given).items()
    ]
    return tuple(notes)


def run_script(spec: ScriptSpec, events: Events) -> int:
    """Returns when every process has ended: 0 where all ended with 0, else 1, and then a Failed
    event was emitted. Raises JobError where the interface of a rail does not exist."""
    rails = _Rails(spec)
    raised_limit(_MOST_DESCRIPTORS)
    adopt_orphans()
    began = time.monotonic()
    events.emit(Started(rank=spec.rank, pid=os.getpid(), structure_hash="", notes=_notes(spec)))
    processes = _Processes()
    events.at_end = lambda: processes.end(_READ_LAST_SECONDS)
    failure: Failed | None = None
    try:
        failure = _start_all(spec, processes, events) or _watch(
            spec,
            processes.started,
            lambda: events.emit(rails.carried(spec.rank, time.monotonic() - began)),
        )
        if processes.are_ending:
            # A signal or the lease ended them. That was reported, and ends this program, too.
            threading.Event().wait()
        if failure is not None:
            # Reported before the other processes end, which may be a consequence.
            events.emit(failure)
    finally:
        processes.end(_READ_SECONDS if failure is None else _READ_LAST_SECONDS)
    last = rails.carried(spec.rank, time.monotonic() - began)
    events.emit(last)
    if failure is not None:
        return 1
    events.emit(
        Finished(
            rank=spec.rank,
            traffic=tuple(
                Traffic(destination="", rail=rail, bytes=sent)
                for rail, sent in last.sent_bytes.items()
            ),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        )
    )
    return 0


class _Processes:
    """The script's processes on this server, and the threads that pass on what they print. A thread
    that waits for a signal may end them while another one starts and watches them."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        self.are_ending = False
        self._readers: list[threading.Thread] = []
        self._lock = threading.Lock()

    def start(self, spec: ScriptSpec, local: int, events: Events) -> None:
        """Starts none where they were ended meanwhile. Raises JobError where it cannot be
        started."""
        with self._lock:
            if not self.are_ending:
                process = _start(spec, local)
                self.started.append(process)
                self._readers += _relayed(process, script_rank(spec, local), events)

    def end(self, read_seconds: float) -> None:
        """Ends them, and returns once what they printed is passed on, or so long after their end.
        Of several callers the first ends them, and the others wait for that: no process gets
        SIGTERM twice."""
        with self._lock:
            if self.are_ending:
                return
            # Set before any of them ends because of this.
            self.are_ending = True
            self._ask()
            kill_descendants(_KILL_SECONDS)
            until = time.monotonic() + read_seconds
            for reader in self._readers:
                reader.join(timeout=max(0.0, until - time.monotonic()))

    def _ask(self) -> None:
        """Returns once they have ended, or had their time."""
        running = [process for process in self.started if process.poll() is None]
        deadline = time.monotonic() + SCRIPT_END_SECONDS
        for process in running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
        # A command before the script may have ended at once, while the script still saves.
        groups = {process.pid for process in running}
        while groups and has_members(groups) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


class _Rails:
    """Counts what each rail has sent since the beginning. Counts never fall, though an interface
    may vanish for a moment, or be made anew and count from 0."""

    def __init__(self, spec: ScriptSpec) -> None:
        """Raises JobError where an interface does not exist."""
        self._names = {one.rail: one.interface for one in spec.rail_interfaces}
        self._seen = self._counters()
        self._sent = dict.fromkeys(self._names, 0)
        if missing := [r for r, interface in self._names.items() if interface not in self._seen]:
            raise JobError(
                f"interface {self._names[missing[0]]} of rail {missing[0]} does not exist",
                "check with `controller status` whether the network is in force",
            )

    def carried(self, rank: int, seconds: float) -> Carried:
        now = self._counters()
        for rail, interface in self._names.items():
            if interface in now:
                more = now[interface] - self._seen[interface]
                self._sent[rail] += more if more >= 0 else now[interface]
        self._seen |= now
        return Carried(rank=rank, seconds=seconds, sent_bytes=dict(self._sent))

    def _counters(self) -> dict[str, int]:
        counted = read_counters(tuple(self._names.values()))
        return {counter.interface: counter.transmit_bytes for counter in counted}


def _start_all(spec: ScriptSpec, processes: _Processes, events: Events) -> Failed | None:
    """Returns why one of them could not be started: others may run then, and take time to end."""
    try:
        for local in range(spec.processes):
            processes.start(spec, local, events)
    except JobError as error:
        return Failed(rank=spec.rank, what=error.what, remedy=error.remedy)
    except RuntimeError as error:  # There is no further thread for what they print.
        return Failed(rank=spec.rank, what=f"{spec.script} could not be started: {error}")
    return None


def _start(spec: ScriptSpec, local: int) -> subprocess.Popen[bytes]:
    # The kernel kills the process when this program is killed.
    python = spec.python or (sys.executable,)
    # The plan's job.env may have a PATH without it.
    setpriv = shutil.which("setpriv", path=f"{os.defpath}:/usr/sbin:/sbin") or "setpriv"
    command = [setpriv, "--pdeathsig", "KILL", "--", *python, spec.script]
    # These signals are blocked in this program, where one thread waits for them; its processes must
    # receive them.
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTIONS)
    try:
        return subprocess.Popen(
            [*command, *spec.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=script_environment(spec, local, given_environment(spec)),
            pass_fds=passed_on(spec),
            process_group=0,
        )
    except OSError as error:
        raise JobError(f"{spec.script} could not be started: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _relayed(process: subprocess.Popen[bytes], rank: int, events: Events) -> list[threading.Thread]:
    """Starts threads that pass on what the process prints, or drop it where nobody listens."""
    # No line of the script's may pass for an event, which begins with a brace.
    mark = f"[{rank}] ".encode()

    def complain(line: bytes) -> None:
        with suppress(OSError):
            os.write(2, line)

    def relay(stream: IO[bytes], say: Callable[[bytes], None]) -> None:
        for line in _lines(stream):
            say(mark + line + b"\n")

    assert process.stdout is not None and process.stderr is not None
    made = [
        threading.Thread(target=relay, args=(process.stdout, events.say), daemon=True),
        threading.Thread(target=relay, args=(process.stderr, complain), daemon=True),
    ]
    for thread in made:
        thread.start()
    return made


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Yields the lines that a process prints, without their ends; of a line of progress its last
    state, so that nothing in it stands at the begin of a line without a mark."""
    line = b""
    while part := stream.readline(_LONGEST_LINE_BYTES):
        line = last_state(line + part)
        if line.endswith(b"\n") or len(line) >= _LONGEST_LINE_BYTES:
            yield line.rstrip(b"\r\n")
            line = b""
    if line:
        yield line.rstrip(b"\r\n")


def _watch(
    spec: ScriptSpec, started: list[subprocess.Popen[bytes]], tell: Callable[[], None]
) -> Failed | None:
    """Waits until all processes ended with 0, one did not, or a rail carries nothing any more."""
    stalled = StalledRails(spec.rail_interfaces, spec.loss_seconds)
    told = looked = time.monotonic()
    while True:
        running = False
        for local, process in enumerate(started):
            status = process.poll()
            running |= status is None
            if status:
                return _failed(spec, local, status)
        if not running:
            return None
        now = time.monotonic()
        if now - told >= TELL_SECONDS:
            told = now
            tell()
        if now - looked >= _LOOK_AT_RAILS_SECONDS:
            looked = now
            try:
                stalled.require_none(now)
            except JobError as error:
                return Failed(rank=spec.rank, what=error.what, remedy=error.remedy)
        time.sleep(_POLL_SECONDS)


def _failed(spec: ScriptSpec, local: int, status: int) -> Failed:
    ending = f"ended with {status}"
    if status < 0:
        ending = f"was killed by {signal_name(-status)}"
    who = f"{spec.script} with RANK {script_rank(spec, local)}"
    return Failed(rank=spec.rank, what=f"{who} {ending}")
