"""The environment of a script's processes, and what their interpreter finds by it."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
from pathlib import Path

import placewire
from placewire.job.contract.interpreter import interpreter_of
from placewire.job.contract.rdma import rdma_choices
from placewire.job.contract.specification import ScriptSpec
from placewire.job.transport.nccl_environment import nccl_environment

# Its sitecustomize runs at the begin of every Python process that has it on its path.
ON_PATH = Path(__file__).resolve().parent / "on_path"
# A process that does not inherit the folder's descriptor has no other with so high a number.
_LEAST_DESCRIPTOR = 900
# A container takes a while to begin.
_LONGEST_SECONDS = 60.0
# The folder that it runs in is none of PYTHONPATH, and may have a types.py.
_LOOK = (
    "import sys; sys.path = [path for path in sys.path if path]; import importlib.util as u; "
    "sys.exit(u.find_spec('placewire_every_nic') is None)"
)


def script_rank(spec: ScriptSpec, local: int) -> int:
    """RANK of a process, which it knows itself by; local: which of this server's it is."""
    return spec.rank * spec.processes + local


def given_environment(spec: ScriptSpec) -> dict[str, str]:
    """This program's environment with the plan's `env`, which is the script's alone: what it says
    of Python and of libraries would break this program."""
    return {**os.environ, **spec.environment}


def script_environment(spec: ScriptSpec, local: int, given: dict[str, str]) -> dict[str, str]:
    """Returns the environment of a process. given: overrides what is chosen here for gloo, NCCL and
    threads; but sockets are used, whatever it says, because RDMA would pass by the queues of
    promised rates."""
    world, names = spec.world_size * spec.processes, [o.interface for o in spec.rail_interfaces]
    rank = str(script_rank(spec, local))
    chosen = {
        **({"OMP_NUM_THREADS": str(spec.threads)} if spec.threads else {}),
        "GLOO_SOCKET_IFNAME": ",".join(names[rail] for rail in spec.rail_pattern),
        **nccl_environment(names, spec.fastest_bits_per_second, 1),
    }
    given = _activated(_own_imports(given, spec), spec)
    if len(spec.rail_parts) > 1:
        parts = zip(names, spec.rail_parts, strict=True)
        # A user who chooses gloo's interfaces wants no others; the other ranks must learn of it.
        cut = "GLOO_SOCKET_IFNAME" not in given and not has_gpus()
        text = ",".join(f"{name}:{part!r}" for name, part in parts)
        chosen["PLACEWIRE_NICS"] = text if cut else "no"
        chosen["PLACEWIRE_CUT_FROM_BYTES"] = str(spec.cut_from_bytes)
        path = [str(ON_PATH), *(f"/proc/self/fd/{one}" for one in passed_on(spec))]
        path += filter(None, [given.get("PYTHONPATH")])
        given = {**given, "PYTHONPATH": os.pathsep.join(path)}
    rendezvous = {
        "RANK": rank,
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(spec.rank),
        "ROLE_RANK": rank,
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
        "PYTHONUNBUFFERED": "1",
    }
    return {**chosen, **given, **rdma_choices(given), **rendezvous}


def has_gpus() -> bool:
    """Whether gloo may only serve the processors beside NCCL, whose handles are not to be changed:
    then no collective is cut."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def _own_imports(given: dict[str, str], spec: ScriptSpec) -> dict[str, str]:
    """Hides this program's packages from an interpreter of the script's own, which has others."""
    if not spec.python or "PYTHONPATH" not in given:
        return given
    own = Path(placewire.__file__).resolve().parents[1]
    kept = [path for path in given["PYTHONPATH"].split(os.pathsep) if Path(path).resolve() != own]
    return {**given, "PYTHONPATH": os.pathsep.join(kept)}


def _activated(given: dict[str, str], spec: ScriptSpec) -> dict[str, str]:
    """Puts the programs of the script's virtual environment first, as activating it does: a script
    that compiles extensions looks for `ninja` there."""
    words = interpreter_of(spec.python)
    if len(words) != 1 or not words[0].startswith("/"):
        return given
    programs = Path(words[0]).parent
    if not (programs.parent / "pyvenv.cfg").is_file():
        return given
    others = [
        one for one in given.get("PATH", os.defpath).split(os.pathsep) if one != str(programs)
    ]
    path = os.pathsep.join([str(programs), *others])
    return {**given, "VIRTUAL_ENV": str(programs.parent), "PATH": path}


def passed_on(spec: ScriptSpec) -> tuple[int, ...]:
    """The descriptors that a process inherits: that of ON_PATH where a command stands before its
    interpreter, which may have another root by then, such as a container's."""
    return (_on_path(),) if len(spec.rail_parts) > 1 and len(spec.python) > 1 else ()


@functools.cache
def _on_path() -> int:
    """Returns its descriptor, which stays open."""
    low = os.open(ON_PATH, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _LEAST_DESCRIPTOR)
    finally:
        os.close(low)


def cuts_collectives(spec: ScriptSpec) -> bool:
    """Whether the script's interpreter finds what is to cut them."""
    if not spec.python:
        return True
    try:
        done = subprocess.run(
            [*interpreter_of(spec.python), "-c", _LOOK],
            env=script_environment(spec, 0, given_environment(spec)),
            pass_fds=passed_on(spec),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LONGEST_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
