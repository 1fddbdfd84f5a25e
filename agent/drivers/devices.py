"""Lists the devices that this server computes with: its GPUs, or its processor without any.

`nvidia-smi` is asked for GPUs: it comes with NVIDIA's driver, and asks NVML, the driver's library.
It is a process of its own, because that library may hang with the driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from typing import NamedTuple

from placewire.agent.contract.capabilities import Device
from placewire.agent.drivers import pci
from placewire.agent.drivers.command import shown
from placewire.agent.reconcile.effects import EffectError

# A driver that nobody has used since its GPUs were idle takes some seconds for each of them.
ANSWER_SECONDS = 20.0
_ENDS_SECONDS = 1.0
# A driver that did not answer is left alone for so long: another question would hang like the last.
ASK_AGAIN_SECONDS = 300.0
_MEBIBYTE = 1024 * 1024
_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,pci.bus_id,mig.mode.current",
    "--format=csv,noheader,nounits",
)
_NOT_INSTALLED = "nvidia-smi is not installed on this server"
_NONE_FOUND = "No devices were found"
_LONGEST_REASON = 300


class Found(NamedTuple):
    """problem: why GPUs are not listed that this server has, or may have; "" for none."""

    devices: tuple[Device, ...]
    problem: str


class _Asking:
    """Asks the driver, one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._again_at = 0.0
        self._stuck: subprocess.Popen[str] | None = None

    def answer(self) -> str:
        """Returns what nvidia-smi prints. Raises EffectError. An nvidia-smi that hangs is ended
        with all that it started. Where it cannot be ended, because the kernel waits in the driver,
        nobody waits for it, and no other one is started beside it."""
        with self._lock:
            stuck = self._stuck is not None and self._stuck.poll() is None
            if stuck or time.monotonic() < self._again_at:
                raise EffectError(f"nvidia-smi gave no answer in {ANSWER_SECONDS:.0f} s")
            self._stuck, self._again_at = None, 0.0
            return self._asked()

    def _asked(self) -> str:
        try:
            child = subprocess.Popen(
                _QUERY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="backslashreplace",
                start_new_session=True, env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except (FileNotFoundError, PermissionError) as error:
            raise EffectError(_NOT_INSTALLED) from error
        except OSError as error:
            raise EffectError(f"nvidia-smi cannot be started: {error.strerror}") from error
        try:
            said, _ = child.communicate(timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._end(child)
            raise EffectError(f"nvidia-smi gave no answer in {ANSWER_SECONDS:.0f} s") from error
        if child.returncode != 0:
            why = " ".join(shown(said).split()) or f"exit {child.returncode}"
            raise EffectError(f"nvidia-smi failed: {why[:_LONGEST_REASON]}")
        return shown(said)

    def _end(self, child: subprocess.Popen[str]) -> None:
        self._again_at = time.monotonic() + ASK_AGAIN_SECONDS
        os.killpg(child.pid, signal.SIGKILL)
        try:
            child.communicate(timeout=_ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            self._stuck = child


_driver = _Asking()


def devices() -> Found:
    """In the driver's order. A GPU that MIG cuts is listed as such, beside the devices that ranks
    can have."""
    there = pci.nvidia_gpus()
    try:
        gpus = parse_gpus(_driver.answer())
    except (EffectError, ValueError) as error:
        why, absent = str(error), (_NOT_INSTALLED, _NONE_FOUND)
        expected = bool(there) or not any(reason in why for reason in absent)
        return Found((processor(),), _problem(there, why) if expected else "")
    whole = any(not gpu.mig for gpu in gpus)
    missing = [a for a in there if a not in {gpu.place.address for gpu in gpus if gpu.place}]
    problem = _problem(missing, "nvidia-smi does not list it") if missing else ""
    return Found((*gpus, *(() if whole else (processor(),))), problem)


def _problem(addresses: tuple[str, ...] | list[str], why: str) -> str:
    named = f"NVIDIA's GPU at {', '.join(addresses)}: " if addresses else ""
    return f"{named}{why}"


def parse_gpus(text: str) -> tuple[Device, ...]:
    """text: a line `name, MiB, PCI address, MIG mode` for each GPU. Raises ValueError."""
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, memory, address, mig = (word.strip() for word in line.rsplit(",", 3))
        if not memory.isdecimal():
            raise ValueError(f"nvidia-smi does not tell the memory of {name}: {memory}")
        found.append(
            Device(
                name=name,
                memory_bytes=int(memory) * _MEBIBYTE,
                place=pci.place_of(address),
                mig=mig == "Enabled",
            )
        )
    return tuple(found)


def processor() -> Device:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Device(name="cpu", memory_bytes=memory_bytes)
