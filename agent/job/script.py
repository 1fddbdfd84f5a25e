"""A script of the user's own on this server: its processes, started as torchrun starts them.

A process finds in its environment what torchrun's static rendezvous gives it (RANK, LOCAL_RANK and
so on; rank 0 opens the store at MASTER_ADDR), and which interfaces gloo and NCCL are to use. All
belong to this program's session and die with it. What they print is passed on with the local rank
before it; what the rails carry is told while they run.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO

from agent.contract.job import Carried, Finished, ScriptSpec, Started, Traffic
from agent.counters import read_counters
from agent.job.events import Events
from agent.job.messages import JobError
from agent.job.nccl_environment import nccl_environment
from agent.job.rail_pattern import rail_pattern

TELL_SECONDS = 2.0
_POLL_SECONDS = 0.1
_END_SECONDS = 5.0
_INTERRUPTIONS = (signal.SIGTERM, signal.SIGINT)


def run_script(spec: ScriptSpec, events: Events) -> None:
    """Until every process has ended with 0. Raises JobError naming the first that did not."""
    if missing := [one for one in spec.rail_interfaces if one.interface not in _sent(spec)]:
        raise JobError(
            f"interface {missing[0].interface} of rail {missing[0].rail} is not there",
            "`controller status` says whether the network is in force",
        )
    before, began = _sent(spec), time.monotonic()
    events.emit(Started(rank=spec.rank, pid=os.getpid(), structure_hash="", notes=_notes(spec)))
    started: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []

    def carried() -> dict[str, int]:
        now = _sent(spec)
        return {r.rail: now[r.interface] - before[r.interface] for r in spec.rail_interfaces}

    try:
        for local in range(spec.processes):
            started.append(_start(spec, local))
            stream = started[-1].stdout
            assert stream is not None
            readers.append(threading.Thread(target=_relay, args=(stream, local, events)))
            readers[-1].start()
        told = began
        while any(process.poll() is None for process in started):
            _require_none_failed(spec, started)
            if time.monotonic() - told >= TELL_SECONDS:
                told = time.monotonic()
                seconds = told - began
                events.emit(Carried(rank=spec.rank, seconds=seconds, sent_bytes=carried()))
            time.sleep(_POLL_SECONDS)
        _require_none_failed(spec, started)
    finally:
        _end(started)
        for reader in readers:
            reader.join(timeout=_END_SECONDS)
    sent = carried()
    events.emit(Carried(rank=spec.rank, seconds=time.monotonic() - began, sent_bytes=sent))
    events.emit(
        Finished(
            rank=spec.rank,
            traffic=tuple(Traffic(destination="", rail=r, bytes=b) for r, b in sent.items()),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        )
    )


def script_environment(spec: ScriptSpec, local: int) -> dict[str, str]:
    """What a process is told beside what it inherits."""
    world = spec.world_size * spec.processes
    names = [one.interface for one in spec.rail_interfaces]
    pattern = rail_pattern(spec.rail_shares)
    return {
        "RANK": str(spec.rank * spec.processes + local),
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(spec.rank),
        "ROLE_RANK": str(spec.rank * spec.processes + local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(spec.processes),
        "GROUP_WORLD_SIZE": str(spec.world_size),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": spec.master_address,
        "MASTER_PORT": str(spec.master_tcp_port),
        "TORCHELASTIC_RUN_ID": "placewire",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": str(spec.threads),
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": ",".join(names[rail] for rail in pattern),
        **nccl_environment(names, 0.0, 1),
    }


def _start(spec: ScriptSpec, local: int) -> subprocess.Popen[bytes]:
    # Whoever is killed takes what it started with it: the kernel sees to that.
    command = ["setpriv", "--pdeathsig", "KILL", "--", sys.executable, spec.script]
    # A thread of this program waits for these signals, which are blocked everywhere else; its
    # processes are to take them.
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTIONS)
    try:
        return subprocess.Popen(
            [*command, *spec.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **script_environment(spec, local)},
        )
    except OSError as error:
        raise JobError(f"{spec.script} could not be started: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _relay(stream: IO[bytes], local: int, events: Events) -> None:
    for line in stream:
        events.say(f"[{local}] ".encode() + line)


def _require_none_failed(spec: ScriptSpec, started: list[subprocess.Popen[bytes]]) -> None:
    for local, process in enumerate(started):
        if (status := process.poll()) is not None and status != 0:
            how = (
                f"was killed by {signal.Signals(-status).name}"
                if status < 0
                else f"ended with {status}"
            )
            rank = spec.rank * spec.processes + local
            raise JobError(f"process {local} of {spec.script} (its rank {rank}) {how}")


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _END_SECONDS
    for process in started:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _sent(spec: ScriptSpec) -> Mapping[str, int]:
    """Bytes by interface, of those that are there."""
    counted = read_counters(tuple(one.interface for one in spec.rail_interfaces))
    return {counter.interface: counter.transmit_bytes for counter in counted}


def _notes(spec: ScriptSpec) -> tuple[str, ...]:
    pattern = [spec.rail_interfaces[rail].rail for rail in rail_pattern(spec.rail_shares)]
    return (f"{spec.processes} processes; gloo's contexts take rails {' '.join(pattern)} in turn",)
