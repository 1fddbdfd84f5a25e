"""Builds a model without memory for its values, and makes any of these values afterwards.

The user's function runs on fake tensors, which have shapes and no memory, while all its operations
on tensors are recorded. To make some values, the operations that these depend on are repeated in
the same order and with the same random numbers. Of other operations only the random numbers are
drawn, and none after the last that is wanted. A process that holds a part of a model thus never
needs memory for more than that part and one tensor.

A function cannot be repeated, and is refused, where it looks at the values of tensors, gets tensors
from a file, restores a state of the random generator, or draws wanted values from a generator of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
Built = TypeVar("Built")
Key = TypeVar("Key")

# Operators that draw as many numbers as their tensor has elements, whatever its values.
_FILLING = frozenset(
    {aten.uniform_.default, aten.normal_.default, aten.bernoulli_.float, aten.exponential_.default}
)


class NotRepeatableError(Exception):
    """Says why the function's tensors cannot be made afterwards."""


@dataclass(frozen=True)
class _Value:
    """The tensor that an earlier operation gave, or a view of that tensor's memory."""

    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_view: bool


@dataclass(frozen=True)
class _Operation:
    """results: the numbers of its results in flattened order, None for results that are no tensors.
    reads, writes: memories. state: the random generator's state before it, where the function set
    it. own_generator: whether it draws from a generator that the function made."""

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
    """All operations on tensors, in order. values: the fake tensors, by number. memories: the
    memory that each had, by number. owners: by memory the first number that had it."""

    begin_state: torch.Tensor = field(default_factory=torch.get_rng_state)
    operations: list[_Operation] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    memories: list[int] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)  # by id() of a value
    owners: dict[int, int] = field(default_factory=dict)

    def make(
        self, wanted: Mapping[Key, torch.Tensor], copied: Collection[Key] = ()
    ) -> dict[Key, torch.Tensor]:
        """Returns the values of these fake tensors. copied: those that are a part of what the
        function made, and get memory of their own. Raises NotRepeatableError."""
        places = {name: self.place_of(tensor) for name, tensor in wanted.items()}
        every = {place.number for place in places.values()}
        kept = {place.number for name, place in places.items() if name not in copied}
        needed = self._needed({self.memories[number] for number in every})
        ends = self._ends(needed, every)
        copies = self._made_at(needed, {name: places[name] for name in copied})
        made: dict[Key, torch.Tensor] = {}
        # After the last random number that is needed, none has to be drawn.
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
                        for name in copies.get(position, ()):
                            made[name] = _resolved(places[name], values).clone()
                        for number in {places[name].number for name in copies.get(position, ())}:
                            if number not in kept:
                                del values[number]
                    elif position < drawn and operation.is_random and not operation.own_generator:
                        (place, *others), options = operation.arguments
                        scratch = torch.empty_strided(place.shape, place.stride, dtype=place.dtype)
                        operation.target(scratch, *others, **options)
            rest = {name: place for name, place in places.items() if name not in made}
            return {**made, **{name: _resolved(place, values) for name, place in rest.items()}}
        finally:
            torch.set_rng_state(before)

    def place_of(self, tensor: torch.Tensor) -> _Value:
        """Raises NotRepeatableError for a tensor that no recorded operation made."""
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
        """Returns the positions of the operations on which the contents of the memories depend."""
        needed, depends, draws_later = set(), set(memories), False
        for position in reversed(range(len(self.operations))):
            operation = self.operations[position]
            is_needed = not depends.isdisjoint(operation.writes)
            if is_needed and operation.own_generator:
                raise NotRepeatableError("a value is drawn from a generator of the model's own")
            draws_blindly = operation.own_generator or operation.target in _FILLING
            if is_needed or (draws_later and operation.is_random and not draws_blindly):
                needed.add(position)
                draws_later |= operation.is_random
                depends |= operation.reads
        return needed

    def _made_at(self, needed: set[int], places: Mapping[Key, _Value]) -> dict[int, list[Key]]:
        """Returns by position the names whose memory no needed operation writes or reads later."""
        last: dict[int, int] = {}
        for position in sorted(needed):
            operation = self.operations[position]
            last |= dict.fromkeys(operation.reads | operation.writes, position)
        found: dict[int, list[Key]] = {}
        for name, place in places.items():
            found.setdefault(last[self.memories[place.number]], []).append(name)
        return found

    def _ends(self, needed: set[int], kept: set[int]) -> dict[int, list[int]]:
        """Returns by position the numbers that nothing needs after that operation."""
        last: dict[int, int] = {}
        for position in sorted(needed):
            operation = self.operations[position]
            places = [x for x in tree_flatten(operation.arguments)[0] if isinstance(x, _Value)]
            used = (*operation.results, *(place.number for place in places))
            last |= {number: position for number in used if number is not None}
        ends: dict[int, list[int]] = {}
        for number, position in last.items():
            if number not in kept:
                ends.setdefault(position, []).append(number)
        return ends


def recorded(build: Callable[[], Built]) -> tuple[Built, Recording]:
    """Returns what build() gives, with fake tensors for all that it makes. Raises
    NotRepeatableError, and whatever build() raises on fake tensors."""
    recording = Recording()
    recorder = _Recorder(recording)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), recorder:
            built = build()
    finally:
        torch.set_rng_state(recording.begin_state)
        # The refusal counts, whatever the function made of it: it may have caught or replaced it.
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
            # Tensors are real in here; torch has no public way to leave its modes.
            with _disable_current_modes():
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
            with _disable_current_modes():
                self._draw()
        return result

    def _state_that_was_set(self) -> torch.Tensor | None:
        now = torch.get_rng_state()
        seen = now.numpy().tobytes()
        if seen == self._state:
            return None
        if seen in self._ours:
            raise NotRepeatableError("the function restores a state of the random generator")
        self._state = seen
        return now

    def _draw(self) -> None:
        """Draws a number, because fake operations draw none: without it, seeding once more with the
        same seed would go unnoticed."""
        torch.rand(1)
        self._state = torch.get_rng_state().numpy().tobytes()
        self._ours.add(self._state)

    def _noted(self, leaf: Any) -> Any:
        if is_fake(leaf):
            return self._recording.place_of(leaf)
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def is_fake(leaf: object) -> bool:
    """Whether it is a tensor without memory for its values."""
    return isinstance(leaf, FakeTensor)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


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
