"""Cuts each large collective of gloo between all NICs; gloo gives each to one.

These files run in a script's own interpreter, where nothing of Placewire is installed: they import
torch and each other alone. By torch.library they put kernels of their own in the place of those of
`c10d` for tensors in the processor's memory. Whoever makes a process group of gloo makes one more
on each NIC at that moment, when all of its ranks are there. A part of the elements of a large
collective then goes to each NIC, in proportion to `PLACEWIRE_NICS`.

All ranks must decide alike what is cut, or they wait for each other. So they agree on it when the
first group is made, and it depends on sizes alone that all ranks see alike. send and recv are never
cut: a sender cannot know whether the receiver takes from any rank. Nor is all_to_all, in which no
rank sees what the others send to each other, nor gather and scatter, which load one server alone.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup

from .handles import with_handles_of_python, with_is_completed
from .nics import NOT_CUT, Nics, say
from .operators import replaced_kernels

# NAME:PART,… of the NICs that all servers have, or NOT_CUT.
NICS_VARIABLE = "PLACEWIRE_NICS"
# The oldest that was tried: it relies on what no release of torch promises. Before 2.2 torch lacks
# ProcessGroup.unbox, without which a kernel that Python wrote cannot know its group.
_LEAST_TORCH = (2, 4)
_KEPT: list[Any] = []


def install() -> None:
    """Changes torch.distributed before the first process group is made; does nothing where it has
    run before."""
    if _KEPT:
        return
    nics = Nics(_text())
    if nics.ends:
        try:
            _KEPT.append(replaced_kernels(nics))
            with_is_completed()
            with_handles_of_python()
        except Exception as error:
            say(f"each collective is one NIC's: {error!r}")
            nics = Nics(NOT_CUT)
    _KEPT.append(nics)
    _join_new_groups(nics)


def forget(group: Any = None) -> None:
    """To be called before a process group is ended; none: all of them."""
    if _KEPT:
        nics: Nics = _KEPT[-1]
        nics.forget(None if group in (None, c10d.GroupMember.WORLD) else group.group_name)


def _text() -> str:
    """Returns the NICs and parts by which this rank would cut, or NOT_CUT."""
    text = os.environ[NICS_VARIABLE]
    version = tuple(int(number) for number in torch.__version__.split(".")[:2])
    if text != NOT_CUT and version < _LEAST_TORCH:
        least = ".".join(map(str, _LEAST_TORCH))
        say(f"torch {torch.__version__} gives each collective to one NIC; {least} can cut them")
        return NOT_CUT
    return text


def _join_new_groups(nics: Nics) -> None:
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def made(*args: Any, **options: Any) -> Any:
        found = make(*args, **options)
        if isinstance(found[0], ProcessGroup):
            nics.join(found[0], found[1])
        return found

    c10d._new_process_group_helper = made
