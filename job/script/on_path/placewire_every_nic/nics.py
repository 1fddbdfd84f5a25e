"""The NICs between which collectives are cut, and the process groups that are made on each."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

# What stands for the NICs' names and parts on a rank that is not to cut.
NOT_CUT = "no"
# Names the bytes of a rank's tensor from which on a collective is cut.
LEAST_VARIABLE = "PLACEWIRE_CUT_FROM_BYTES"
_LEAST_BYTES = 1 << 18
# All ranks have just made a group together.
_AGREEMENT = timedelta(seconds=30)
# NICs whose parts differ by less are as fast as each other.
_AS_FAST = 0.99
# Parts begin where vectors of a processor do.
_ELEMENTS = 64
CPU = torch.device("cpu")


class Nics:
    """ends: up to which part of all elements each NIC carries. agreed: whether all ranks cut; None
    before the first group is made."""

    def __init__(self, text: str) -> None:
        each = [one.rpartition(":") for one in text.split(",") if text != NOT_CUT]
        parts = [float(part) for _, _, part in each]
        self._text, self._names = text, [name for name, _, _ in each]
        self.ends = [sum(parts[: k + 1]) / sum(parts) for k in range(len(parts))]
        fastest = max(parts, default=0.0) * _AS_FAST
        self._fastest = [k for k, part in enumerate(parts) if part >= fastest]
        self.least_bytes = int(os.environ.get(LEAST_VARIABLE, _LEAST_BYTES))
        self.agreed: bool | None = None
        # By the name of a process group its groups on the NICs, and the handles of what they do.
        self._groups: dict[str, list[Any]] = {}
        self._pending: dict[str, list[Any]] = {}
        self._turns: dict[str, int] = {}
        self._lock = threading.Lock()
        atexit.register(self.forget)  # Groups that live on when torch ends abort the process.

    def ranges(self, elements: int) -> list[tuple[int, int]]:
        """First and last element, exclusive, of each NIC's part, which is never empty."""
        found, start = [], 0
        for part in self.ends[:-1]:
            end = max(int(elements * part) // _ELEMENTS * _ELEMENTS, start + _ELEMENTS)
            found.append((start, end))
            start = end
        return [*found, (start, elements)]

    def join(self, group: Any, store: Any) -> None:
        """To be called by all ranks of a group that was just made."""
        if self.agreed is None:
            self.agreed = _agreed(self._text, self.least_bytes, group, store)
        if self.agreed and group.size() > 1 and _is_gloo(group):
            own, name = group._get_backend(CPU), group.group_name
            self._groups[name] = [
                _on_nic(PrefixStore(f"placewire/{k}", store), own, nic)
                for k, nic in enumerate(self._names)
            ]

    def of(self, group: Any) -> list[Any]:
        """A process group for each NIC; [] where the group's collectives are not cut."""
        return self._groups.get(group.group_name, [])

    def fastest(self, group: Any) -> Any:
        """The process group on the fastest NIC; where several are as fast, they take turns."""
        turn = self._turns.get(group.group_name, 0)
        self._turns[group.group_name] = turn + 1
        return self.of(group)[self._fastest[turn % len(self._fastest)]]

    def forget(self, name: str | None = None) -> None:
        """Ends the groups of one process group, or of all."""
        every: tuple[dict[str, Any], ...] = (self._groups, self._pending, self._turns)
        for known in every:
            if name is None:
                known.clear()
            else:
                known.pop(name, None)
        if name is None:
            self.agreed = None

    def begun(self, group: Any, future: Any = None) -> list[Any]:
        """The futures of what the group does; future: of what it begins now."""
        with self._lock:
            left = [one for one in self._pending.get(group.group_name, []) if not one.done()]
            self._pending[group.group_name] = left if future is None else [*left, future]
            return left


def _agreed(text: str, least_bytes: int, group: Any, store: Any) -> bool:
    """Whether all ranks cut alike. One on which this file does not run never says so."""
    apart, mine = PrefixStore("placewire/cut", store), f"{text} from {least_bytes}"
    apart.set(str(group.rank()), mine)
    keys = [str(rank) for rank in range(group.size())]
    try:
        apart.wait(keys, _AGREEMENT)
        alike = all(apart.get(key) == mine.encode() for key in keys)
    except RuntimeError:
        alike = False
    if not alike and text != NOT_CUT:
        say("not every rank can cut collectives between NICs: each collective is one NIC's")
    return alike and text != NOT_CUT


def say(text: str) -> None:
    sys.stderr.write(f"placewire: {text}\n")


def _on_nic(store: Any, like: Any, nic: str) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(interface=nic)]
    options._threads = like.options._threads
    options._timeout = like.options._timeout
    return gloo(store, like.rank(), like.size(), options)


def _is_gloo(group: Any) -> bool:
    try:
        return type(group._get_backend(CPU)) is ProcessGroupGloo
    except RuntimeError:  # It has none for tensors in the processor's memory.
        return False
