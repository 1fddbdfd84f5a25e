"""A model built without memory for its values, and any of these made afterwards.

The user's function runs on fake tensors, which have shapes and no memory, while everything that it
does to tensors is written down. Doing the part of it again that some values depend on, in the same
order and with the same random numbers, gives the same values. Of what nobody wants only the random
numbers are drawn, and none after the last that somebody does. So a process that holds a part of a
model never has room for more than that part and one tensor.

What cannot be repeated is refused: a function that looks at the values of tensors, gets some from a
file, restores a state of the random generator, or draws what is wanted from one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
Built = TypeVar("Built")
Key = TypeVar("Key")

# They draw as many numbers as the tensor that they fill has elements, whatever is in it.
_FILLING = frozenset(
    {aten.uniform_.default, aten.normal_.default, aten.bernoulli_.float, aten.exponential_.default}
)


class NotRepeatableError(Exception):
    """The function's tensors cannot be made afterwards; why."""


@dataclass(frozen=True)
class _Value:
    """The tensor that an earlier operation gave, or this view of its memory."""

    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_view: bool

    def scratch(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


@dataclass(frozen=True)
class _Operation:
    """results: numbers of the tensors that it gives, in flattened order, None for others. reads and
    writes: memories. state: of the random generator before it, where the function set it."""

    target: Callable[..., Any]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    results: tuple[int | None, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    state: torch.Tensor | None
    is_random: bool
    own_generator: bool


@dataclass
class Recording:
    """All that was done to tensors, in order. values: the fake tensors by number; memories: the
    memory that each had; owners: the first number of each memory."""

    begin_state: torch.Tensor = field(default_factory=torch.get_rng_state)
    operations: list[_Operation] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # by id() of a value
    owners: dict[int, int] = field(default_factory=dict)

    def make(self, wanted: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """The values of these fake tensors. Raises NotRepeatableError."""
        places = {name: self.place_of(tensor) for name, tensor in wanted.items()}
        kept = {place.number for place in places.values()}
        needed = self._needed({self.memories[number] for number in kept})
        ends = self._ends(needed, kept)
        # From the last random number that is wanted on, none need be drawn.
        drawn = max((p for p in needed if self.operations[p].is_random), default=-1)
        values: dict[int, torch.Tensor] = {}
        before = torch.get_rng_state()
        try:
            torch.set_rng_state(self.begin_state)
            with torch.no_grad():
                for position, operation in enumerate(self.operations):
                    if operation.state is not None:
                        torch.set_rng_state(operation.state)
                    if position in needed:
                        _repeat(operation, values)
                        for number in ends.get(position, ()):
                            values.pop(number, None)
                    elif position < drawn and operation.is_random and not operation.own_generator:
                        _draw_only(operation)
            return {name: _resolved(place, values) for name, place in places.items()}
        finally:
            torch.set_rng_state(before)

    def place_of(self, tensor: torch.Tensor) -> _Value:
        """Raises NotRepeatableError for a tensor that nothing here made."""
        memory = _memory(tensor)
        number = self.numbers.get(id(tensor))
        # A tensor may have been given another's memory since.
        is_view = number is None or self.memories[number] != memory
        if is_view:
            number = self.owners.get(memory)
            if number is None or self.values[number].dtype != tensor.dtype:
                raise NotRepeatableError("a tensor comes from elsewhere, like a file")
        assert number is not None
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        return _Value(number, shape, stride, int(tensor.storage_offset()), tensor.dtype, is_view)

    def number(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self.numbers:
            self.numbers[id(tensor)] = len(self.values)
            self.owners.setdefault(_memory(tensor), len(self.values))
            self.values.append(tensor)
            self.memories.append(_memory(tensor))
        return self.numbers[id(tensor)]

    def _needed(self, memories: set[int]) -> set[int]:
        """Positions of the operations that what these memories hold depends on."""
        needed, depends, draws_later = set(), set(memories), False
        for position in reversed(range(len(self.operations))):
            operation = self.operations[position]
            is_needed = not depends.isdisjoint(operation.writes)
            if is_needed and operation.own_generator:
                raise NotRepeatableError("a value is drawn from a generator of the model's own")
            repeats = operation.is_random and not _draws_blindly(operation)
            if is_needed or (draws_later and repeats):
                needed.add(position)
                draws_later |= operation.is_random
                depends |= operation.reads
        return needed

    def _ends(self, needed: set[int], kept: set[int]) -> dict[int, list[int]]:
        """By position: what nothing needs any more after that operation."""
        last: dict[int, int] = {}
        for position in sorted(needed):
            operation = self.operations[position]
            used = (*operation.results, *(place.number for place in _places_in(operation)))
            last |= {number: position for number in used if number is not None}
        ends: dict[int, list[int]] = {}
        for number, position in last.items():
            if number not in kept:
                ends.setdefault(position, []).append(number)
        return ends


def recorded(build: Callable[[], Built]) -> tuple[Built, Recording]:
    """What build() gives, with fake tensors for all that it makes. Raises NotRepeatableError, or
    what build raises on fake tensors and not on real ones."""
    recording = Recording()
    recorder = _Recorder(recording)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), recorder:
            built = build()
    finally:
        torch.set_rng_state(recording.begin_state)
        # First of all, and also where the function made nothing of it, or something else.
        if recorder.refusal is not None:
            raise recorder.refusal
    return built, recording


class _Recorder(TorchDispatchMode):
    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording
        self._state = recording.begin_state.numpy().tobytes()
        self._ours: set[bytes] = set()
        self.refusal: NotRepeatableError | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        try:
            with _plainly():
                state = self._state_that_was_set()
                arguments = tree_map(self._noted, (args, options))
        except NotRepeatableError as refusal:
            self.refusal = self.refusal or refusal
            raise
        before = [leaf for leaf in tree_flatten((args, options))[0] if is_fake(leaf)]
        reads = frozenset(_memory(leaf) for leaf in before)
        result = func(*args, **options)
        leaves = tree_flatten(result)[0]
        writes = {_memory(leaf) for leaf in leaves if is_fake(leaf)}
        operation = _Operation(
            target=func,
            arguments=arguments,
            results=tuple(self._recording.number(x) if is_fake(x) else None for x in leaves),
            reads=reads,
            writes=frozenset(writes | reads if func._schema.is_mutable else writes),
            state=state,
            is_random=torch.Tag.nondeterministic_seeded in func.tags,
            own_generator=options.get("generator") is not None,
        )
        self._recording.operations.append(operation)
        if operation.is_random and not operation.own_generator:
            with _plainly():
                self._draw()
        return result

    def _state_that_was_set(self) -> torch.Tensor | None:
        now = torch.get_rng_state()
        seen = now.numpy().tobytes()
        if seen == self._state:
            return None
        if seen in self._ours:
            raise NotRepeatableError("it restores a state of the random generator")
        self._state = seen
        return now

    def _draw(self) -> None:
        """Fake operations draw nothing; without this a function that seeds once more with the same
        seed would go unnoticed."""
        torch.rand(1)
        self._state = torch.get_rng_state().numpy().tobytes()
        self._ours.add(self._state)

    def _noted(self, leaf: Any) -> Any:
        if is_fake(leaf):
            return self._recording.place_of(leaf)
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _plainly() -> AbstractContextManager[Any]:
    """Tensors of our own, while the user's are fake: torch offers nothing public for it."""
    made: AbstractContextManager[Any] = _disable_current_modes()
    return made


def is_fake(leaf: object) -> bool:
    """A tensor without memory for its values."""
    return isinstance(leaf, FakeTensor)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _draws_blindly(operation: _Operation) -> bool:
    return operation.own_generator or operation.target in _FILLING


def _draw_only(operation: _Operation) -> None:
    args, options = operation.arguments
    operation.target(args[0].scratch(), *args[1:], **options)


def _repeat(operation: _Operation, values: dict[int, torch.Tensor]) -> None:
    args, options = tree_map(
        lambda leaf: _resolved(leaf, values) if isinstance(leaf, _Value) else leaf,
        operation.arguments,
    )
    results = tree_flatten(operation.target(*args, **options))[0]
    for number, result in zip(operation.results, results, strict=True):
        if number is not None:
            values.setdefault(number, result)


def _resolved(place: _Value, values: Mapping[int, torch.Tensor]) -> torch.Tensor:
    tensor = values[place.number]
    if not place.is_view:
        return tensor
    return tensor.as_strided(place.shape, place.stride, place.offset)


def _places_in(operation: _Operation) -> Iterator[_Value]:
    for leaf in tree_flatten(operation.arguments)[0]:
        if isinstance(leaf, _Value):
            yield leaf
