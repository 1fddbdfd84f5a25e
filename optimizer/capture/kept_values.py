"""Finds what forward keeps in Python from one call to the next, which no step would.

A step is captured by one call of forward, and is fixed then. What that call computed of a plain
tensor or a number that a module keeps, of a buffer that forward replaces instead of writing it, or
of a number drawn in Python, would stay as it was in all steps. Tensors that are kept so, and draws,
are refused. Of numbers the user is told, since they may be counts on which nothing depends.
"""

from __future__ import annotations

import inspect
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch._functorch._aot_autograd.frontend_utils import _detect_attribute_assignment
from torch.export import ExportedProgram, _trace
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from placewire.optimizer.capture.errors import CaptureError, user_location_in

_STANDARD = frozenset(vars(torch.nn.Module()))
_MISSING = object()
_PLAIN = (bool, int, float, complex, str, bytes, set, frozenset, tuple)
# How many attributes a sentence names, and how much it shows of a value.
_NAMED, _SHOWN = 3, 40
# What asks a tensor for no value.
_OF_FORM = frozenset({
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "is_cuda",
    "is_sparse", "is_nested", "grad_fn", "size", "dim", "numel", "stride", "is_contiguous",
    "is_floating_point", "is_complex", "__len__",
})  # fmt: skip


@dataclass(frozen=True)
class _Change:
    """What a call of forward left in an attribute, other than what it found. name: the module's.
    place: the line that read it before anything was set, "" where none did. uses_tensor: whether
    the next call used a tensor that this one left there."""

    module: torch.nn.Module
    name: str
    attribute: str
    before: Any
    after: Any
    place: str = ""
    uses_tensor: bool = False

    @property
    def key(self) -> tuple[int, str]:
        return id(self.module), self.attribute

    @property
    def is_of_tensors(self) -> bool:
        old, new = ([id(x) for x in _leaves(v) if _is_tensor(x)] for v in (self.before, self.after))
        return old != new

    @property
    def is_of_tensors_alone(self) -> bool:
        old, new = ([x for x in _leaves(v) if not _is_tensor(x)] for v in (self.before, self.after))
        return self.is_of_tensors and _is_alike(old, new)

    def __str__(self) -> str:
        path = ".".join(filter(None, (self.name, self.attribute)))
        return f"{path} of {type(self.module).__name__}"

    def told(self) -> str:
        return f"{self} from {_shown(self.before)} to {_shown(self.after)} ({self.place})"


def exported_alone(
    export: Callable[[], ExportedProgram], where: str, prefix: str = ""
) -> tuple[ExportedProgram, str | None]:
    """Returns what export() gives, which calls torch.export; and a sentence about numbers that the
    modules keep, None where they keep none. prefix: what modules' names have before their own.
    Raises CaptureError where forward keeps a tensor, or draws numbers in Python.
    """
    first = _Call(prefix)
    with first.watched():
        made = export()
    if first.drawn:
        raise CaptureError(
            f"{where}: forward draws from {' and '.join(first.drawn)}, and what it drew when the "
            "step was captured would be part of every step: draw by torch, as torch.rand does, "
            "which draws anew in each step, or let `batches` return what was drawn"
        )
    for name in _read_buffers(made) & first.replaced.keys():
        raise CaptureError(
            f"{first.replaced[name]}: forward reads buffer {name.removeprefix(prefix)} and then "
            "puts another tensor in its place, so that every step would read what the buffer was "
            f"when the step was captured; write it in place ({_in_place(name)})"
        )
    kept = _kept(export, made, first.changes, prefix) if first.changes else []
    for change in kept:
        if change.uses_tensor:
            raise CaptureError(
                f"{change.place}: forward reads {change} and then sets it, and it is neither a "
                "parameter nor a buffer: every step would read what it held when the step was "
                f"captured; register it as a buffer (self.register_buffer({change.attribute!r}, "
                f"...)), and write it in place ({_in_place(change.attribute)})"
            )
    return made, _sentence(kept)


def _read_buffers(program: ExportedProgram) -> set[str]:
    read = {node.name for node in program.graph.find_nodes(op="placeholder") if node.users}
    buffers = program.graph_signature.inputs_to_buffers
    return {buffer for node, buffer in buffers.items() if node in read}


def _in_place(name: str) -> str:
    return f"self.{name.rpartition('.')[2]}.copy_(...)"


def _sentence(kept: Sequence[_Change]) -> str | None:
    if not kept:
        return None
    more = f" and {len(kept) - _NAMED} more" if len(kept) > _NAMED else ""
    return (
        f"forward changes what its modules keep in Python: "
        f"{', '.join(change.told() for change in kept[:_NAMED])}{more}. The step is fixed when it "
        "is captured: each step computes with what such a number was in that call; keep one that "
        "is to go on in a buffer, and write that in place"
    )


def _kept(
    export: Callable[[], ExportedProgram],
    made: ExportedProgram,
    changes: Sequence[_Change],
    prefix: str,
) -> list[_Change]:
    """Calls forward once more, as it left its modules. What a second call sets before it reads it,
    as the loss of a layer's experts, or leaves as it is, as a mask that the first one made, is no
    matter; nor are tensors that it replaces unused, as those in a list that it clears. Returns the
    other changes, as the first call made them. made: what the first call gave."""
    uses = _Uses()
    second = _Call(prefix, uses)
    with ExitStack() as undo:
        noted: dict[tuple[type, str], _Noted] = {}
        for one in changes:
            kind = type(one.module)
            if (kind, one.attribute) not in noted:
                noting = noted[kind, one.attribute] = _Noted(kind, one.attribute)
                undo.enter_context(mock.patch.object(kind, one.attribute, noting, create=True))
            undo.callback(_put, one, one.before)
            left = tree_map(_with_memory, one.after)
            uses.look_for(one.key, left)
            _put(one, left)
        second.noted = noted.values()
        try:
            with second.watched():
                program = export()
            uses.note_constants(program)
            # Forward may also do other things where it finds anything at all.
            is_same = _text(program) == _text(made)
            again = {change.key: change for change in second.changes}
        except Exception:  # It reads the values of what it kept: no step could.
            is_same, again = False, {change.key: change for change in changes}
        read = {
            one.key: place
            for one in changes
            if (place := noted[type(one.module), one.attribute].read.get(id(one.module)))
        }
    found = [
        replace(
            one,
            place=read[one.key],
            uses_tensor=again[one.key].is_of_tensors and (one.key in uses.found or not is_same),
        )
        for one in changes
        if one.key in again.keys() & read.keys()
    ]
    return [one for one in found if one.uses_tensor or not again[one.key].is_of_tensors_alone]


def _text(program: ExportedProgram) -> str:
    """Of its graph and of those within, as of parts under autocast."""
    text: str = program.graph_module.print_readable(print_output=False)
    return text


class _Uses(TorchFunctionMode):
    """found: the keys of those attributes of which the values of a tensor were used."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[int, str]] = set()
        self._tensors: list[tuple[torch.Tensor, tuple[int, str]]] = []

    def look_for(self, key: tuple[int, str], value: Any) -> None:
        self._tensors += [(leaf, key) for leaf in _leaves(value) if _is_tensor(leaf)]

    def note_constants(self, program: ExportedProgram) -> None:
        """Functions that are called from C++ are seen in the graph alone."""
        constants = program.graph_signature.inputs_to_lifted_tensor_constants
        nodes = program.graph.find_nodes(op="placeholder")
        used = [constants[node.name] for node in nodes if node.users and node.name in constants]
        self._note([program.constants[name] for name in used])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A property is read by the __get__ of what has its name.
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if name not in _OF_FORM:
            self._note(_leaves((args, kwargs)))
        return func(*args, **kwargs or {})

    def _note(self, used: Sequence[Any]) -> None:
        ids = {id(one) for one in used}
        self.found |= {key for tensor, key in self._tensors if id(tensor) in ids}


class _Call:
    """One call of forward within torch.export. changes: what it left otherwise than it found it.
    replaced: by the names of buffers in whose place it put another tensor the line that did.
    drawn: the generators of Python that it drew from. noted: is told when the call begins. within:
    is entered for the call."""

    def __init__(self, prefix: str, within: AbstractContextManager[object] | None = None) -> None:
        self.changes: list[_Change] = []
        self.replaced: dict[str, str] = {}
        self.drawn: list[str] = []
        self.noted: Iterable[_Noted] = ()
        self._prefix = prefix
        self._within = within or nullcontext()

    @contextmanager
    def watched(self) -> Iterator[None]:
        # torch.export does the same, but says it in a warning, and of tensors alone; and then it
        # restores all attributes that there were before.
        with mock.patch.object(_trace, _detect_attribute_assignment.__name__, self._around):
            yield

    @contextmanager
    def _around(self, root: torch.nn.Module) -> Iterator[None]:
        names = {id(module): name for name, module in root.named_modules()}

        def replacing(module: torch.nn.Module, attribute: str, value: Any) -> None:
            # torch itself sees to the buffers of the outermost module.
            if module is root or module._buffers.get(attribute) is value or id(module) not in names:
                return
            place = user_location_in("".join(traceback.format_stack()), type(module).__name__)
            self.replaced[f"{names[id(module)]}.{attribute}"] = place

        with (
            _detect_attribute_assignment(root),
            register_module_buffer_registration_hook(replacing),
        ):
            modules = {
                name.removeprefix(self._prefix.rstrip(".")).removeprefix("."): module
                for name, module in root.named_modules()
            }
            found = {name: _attributes(module) for name, module in modules.items()}
            states = _states()
            for one in self.noted:
                one.begin()
            with self._within:
                yield
            now = _states()
            self.drawn = [name for name, state in states.items() if now[name] != state]
            for name, module in modules.items():
                before, after = found[name], _attributes(module)
                for attribute in {**before, **after}:
                    old, new = (some.get(attribute, _MISSING) for some in (before, after))
                    if not _is_alike(old, new):
                        self.changes.append(_Change(module, name, attribute, old, new))
                    if old is _MISSING:
                        del vars(module)[attribute]


class _Noted:
    """Stands in a class for an attribute of its modules. read: by id() of a module the line that
    read the attribute before any was set in this call."""

    def __init__(self, kind: type, attribute: str) -> None:
        self._attribute = attribute
        self._of_class = inspect.getattr_static(kind, attribute, _MISSING)
        self._set: set[int] = set()
        self.read: dict[int, str] = {}

    def begin(self) -> None:
        self._set.clear()
        self.read.clear()

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        if module is not None and id(module) not in self._set and id(module) not in self.read:
            stack = "".join(traceback.format_stack())
            self.read[id(module)] = user_location_in(stack, type(module).__name__)
        if module is not None and self._attribute in vars(module):
            return vars(module)[self._attribute]
        if self._of_class is _MISSING:
            raise AttributeError(self._attribute)
        bind = getattr(type(self._of_class), "__get__", None)
        return self._of_class if bind is None else bind(self._of_class, module, kind)

    def __set__(self, module: Any, value: Any) -> None:
        self._set.add(id(module))
        vars(module)[self._attribute] = value

    def __delete__(self, module: Any) -> None:
        del vars(module)[self._attribute]


def _put(change: _Change, value: Any) -> None:
    """Past whatever stands in the class."""
    if value is _MISSING:
        vars(change.module).pop(change.attribute, None)
    else:
        vars(change.module)[change.attribute] = value


def _attributes(module: torch.nn.Module) -> Mapping[str, Any]:
    """Containers are copied, since forward may change what is in them."""
    return {
        name: tree_map(lambda x: set(x) if isinstance(x, set) else x, value)
        for name, value in vars(module).items()
        if name not in _STANDARD
    }


def _with_memory(leaf: Any) -> Any:
    """A tensor of one export is none for another."""
    if not _is_tensor(leaf):
        return leaf
    return torch.zeros(tuple(leaf.shape), dtype=leaf.dtype, device=leaf.device)


def _is_alike(before: Any, after: Any) -> bool:
    (old, form), (new, other) = tree_flatten(before), tree_flatten(after)
    return form == other and all(
        a is b or (isinstance(a, _PLAIN) and isinstance(b, _PLAIN) and a == b)
        for a, b in zip(old, new, strict=True)
    )


def _leaves(value: Any) -> list[Any]:
    return tree_flatten(value)[0]


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _states() -> Mapping[str, object]:
    """Of the generators that every library of Python may draw from."""
    of_numpy = tree_map(
        lambda x: x.tobytes() if isinstance(x, np.ndarray) else x,
        np.random.get_state(legacy=False),
    )
    return {"Python's `random`": random.getstate(), "NumPy's global generator": of_numpy}


def _shown(value: Any) -> str:
    text = "nothing" if value is _MISSING else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
