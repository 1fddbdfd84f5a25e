"""Measures how much memory a process's steps take, and how much its program takes.

A placement predicts the job's tensors on a device: parameters, buffers, optimizer state, inputs,
activations, workspace, messages. Everything else that a process holds is its program: Python,
torch, the captured graph, what libraries keep from their first call on; on a GPU the context and
the kernels. The program is measured once, after a step, when only tensors that stay exist.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Callable
from pathlib import Path

import torch

from placewire.optimizer.capture.nodes import tensors_in

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# Written to clear_refs, this resets the kernel's peak of resident memory.
_FORGET_PEAK = "5"


class _HeapInformation(ctypes.Structure):
    """struct mallinfo2 of <malloc.h>."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def heap_in_use() -> Callable[[], int] | None:
    """Returns a function that returns the bytes of the C library's heap that are in use, holes
    between them left out; None where the library does not tell."""
    information = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if information is None:
        return None
    information.restype = _HeapInformation

    def read() -> int:
        now = information()
        return int(now.uordblks) + int(now.hblkhd)

    return read


def held_bytes(module: torch.nn.Module) -> int:
    """Returns the bytes that stay between steps: storages of the module's buffers, and of tensors
    that its parts keep as attributes, as optimizers do."""
    sizes = {}
    for part in module.modules():
        for tensor in (*part.buffers(recurse=False), *tensors_in([*vars(part).values()])):
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


class MemoryMeter:
    """program_bytes and step_bytes are None until after_first_step(), and where the kernel does not
    let the process reset its peak.

    device_type: cpu, or cuda for the process's current CUDA device. On CUDA the program is what the
    device holds beside torch's tensors, other processes included, and the steps' bytes are those of
    tensors.
    """

    def __init__(self, device_type: str) -> None:
        self._on_cuda = device_type == "cuda"
        self._earlier_peak = 0
        self._held = self._in_use_at_rest = 0
        self._most_in_use: int | None = None
        self.heap_in_use = None if self._on_cuda else heap_in_use()
        self.program_bytes: int | None = None

    def after_first_step(self, held: int) -> None:
        """held: bytes of the tensors that stay, by held_bytes()."""
        self._earlier_peak = _process_peak()
        gc.collect()
        if self.heap_in_use is not None:
            self._held, self._in_use_at_rest = held, self.heap_in_use()
        if self._on_cuda:
            free, total = torch.cuda.mem_get_info()
            self.program_bytes = total - free - torch.cuda.memory_reserved()
            torch.cuda.reset_peak_memory_stats()
            return
        # What the capture left free in glibc's heap would hide what the steps take.
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)
        try:
            _CLEAR.write_text(_FORGET_PEAK)
        except OSError:  # forbidden: better no figure than one with the capture's peak
            return
        self.program_bytes = _status("VmRSS") - held

    @property
    def step_bytes(self) -> int | None:
        """The most that steps took since after_first_step(), what stays between them included."""
        if self.program_bytes is None:
            return None
        if self._on_cuda:
            return torch.cuda.max_memory_allocated()
        return _status("VmHWM") - self.program_bytes

    def after_reading(self, most_in_use: int) -> None:
        """most_in_use: what heap_in_use() read at most during a later step."""
        self._most_in_use = most_in_use

    @property
    def tensor_bytes(self) -> int | None:
        """The most that tensors took in a step, what stays between steps included, and what
        operators on a CPU hold only while they run left out; None where it was not read."""
        if self._on_cuda or self._most_in_use is None:
            return self.step_bytes if self._on_cuda else None
        return self._held + max(0, self._most_in_use - self._in_use_at_rest)

    @property
    def program_and_step_bytes(self) -> int | None:
        """The most that both took at once; on a GPU including what torch's allocator keeps."""
        if self.program_bytes is None:
            return None
        if self._on_cuda:
            return self.program_bytes + torch.cuda.max_memory_reserved()
        return _status("VmHWM")

    @property
    def process_peak_bytes(self) -> int:
        """The most host memory since the start of the process."""
        return max(self._earlier_peak, _process_peak())


def _process_peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(field: str) -> int:
    """Returns the bytes of a line like `VmRSS: 12 kB`."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {field}")
