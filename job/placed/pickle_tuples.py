"""Refuses a pickle with tuples whose hash would end the process, or never end.

A reader hashes the keys of a dict. Python hashes a tuple by its values, with no limit of how deep
tuples lie in each other: the stack of C runs out, of which no exception tells. So the operations of
a pickle are walked before it is loaded, and of what they would make no more than a count is kept.
"""

from __future__ import annotations

import pickle
import pickletools
from typing import IO

from torch._C import PyTorchFileReader

# The stack of C, usually 8 MiB, has room for ten times as many tuples in each other.
_MOST_INSIDE = 10_000
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_GETS = ("GET", "BINGET", "LONG_BINGET")
# Only what contains itself needs them.
_REFUSED = ("POP", "POP_MARK", "DUP")
# What they make may be hashed by all that it is made of: a call may return a tuple.
_MAKERS = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST")
_MARK = pickletools.markobject
_ZIP = b"PK\3\4"


def _taken(before: list[pickletools.StackObject]) -> tuple[bool, int]:
    """Whether an operation takes all since the last mark, and how many values before that."""
    return (True, before.index(_MARK)) if _MARK in before else (False, len(before))


_TAKEN = {one.name: _taken(one.stack_before) for one in pickletools.opcodes}


def require_hashable(content: bytes) -> None:
    """content: a pickle. Raises UnpicklingError, and errors of any kind where it is damaged."""
    inside: list[int] = []  # How many values lie in each value of the stack.
    marks: list[int] = []
    memo: dict[object, int] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _PUTS:
            memo[len(memo) if name == "MEMOIZE" else argument] = inside[-1]
        elif name in _GETS:
            inside.append(memo[argument])
        elif name == "MARK":
            marks.append(len(inside))
        elif name in _REFUSED:
            raise pickle.UnpicklingError(f"it has the operation {name}, which it has no need of")
        else:
            to_mark, before = _TAKEN[name]
            begin = max((marks.pop() if to_mark else len(inside)) - before, 0)
            taken = inside[begin:]
            made = 1 + sum(taken) if name in _MAKERS else max(taken, default=0)
            if made > _MOST_INSIDE:
                raise pickle.UnpicklingError(f"a tuple has more than {_MOST_INSIDE} others in it")
            del inside[begin:]
            inside += [made] * len(opcode.stack_after)


def require_hashable_archive(stream: IO[bytes]) -> None:
    """stream: what torch.save wrote; it is at its beginning afterwards. Raises the same."""
    if stream.read(len(_ZIP)) != _ZIP:  # torch would read it as an older release's.
        raise pickle.UnpicklingError("it is no archive of torch.save")
    stream.seek(0)
    require_hashable(PyTorchFileReader(stream).get_record("data.pkl"))
    stream.seek(0)
