"""Describes the keys of a file, from the frozen types into which it is parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Le, MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from placewire.optimizer.cluster_plan.values import Check

_PLAIN = {str: "a text", int: "a whole number"}


@dataclass(frozen=True)
class Entry:
    """One key of a file. default: its default as a file has it, or "required"."""

    key: str
    accepted: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Section:
    """A mapping of a file. path: its place, like `cluster.servers[]`; kind: the value of its key
    `kind`, where several mappings may stand there."""

    path: str
    kind: str | None
    about: str
    entries: tuple[Entry, ...]


def sections(model: type[BaseModel], path: str = "") -> Iterator[Section]:
    """The sections of a model and of all mappings in it, each before those that it holds."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    entries = tuple(_entry(name, field) for name, field in model.model_fields.items())
    # Not __doc__: a model without a docstring would have that of its base.
    yield Section(path, _kind(model), vars(model).get("__doc__") or "", entries)
    for key, field in fields.items():
        for inner, brackets in _models_in(field.annotation):
            yield from sections(inner, f"{path}.{key}{brackets}".removeprefix("."))


def _kind(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("kind")
    return str(get_args(field.annotation)[0]) if field else None


def _models_in(annotation: Any, brackets: str = "") -> list[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(annotation, brackets)]
    inside = brackets + "[]" if get_origin(annotation) is tuple else brackets
    return [found for part in get_args(annotation) for found in _models_in(part, inside)]


def _entry(name: str, field: FieldInfo) -> Entry:
    assert field.description, f"{name} has no description"
    accepted = _accepted(field.annotation, field.metadata)
    return Entry(field.alias or name, accepted, _default(name, field, accepted), field.description)


def _accepted(annotation: Any, metadata: Sequence[Any]) -> str:
    """What the last check of a key says that it accepts, or else the type in words."""
    for one in reversed(metadata):
        if isinstance(one, BeforeValidator | AfterValidator) and isinstance(one.func, Check):
            return one.func.accepted
    bounds = {type(one): one for one in _flat(metadata)}
    if Ge in bounds and Le in bounds:
        return f"a whole number from {bounds[Ge].ge} to {bounds[Le].le}"
    least = bounds[MinLen].min_length if MinLen in bounds else 0
    some = f", at least {'one' if least == 1 else least}" if least else ""
    return _of_type(annotation) + some


def _flat(metadata: Sequence[Any]) -> list[Any]:
    """The metadata, with that of each Field inside an Annotated in place of the Field."""
    return [
        inner
        for one in metadata
        for inner in (one.metadata if isinstance(one, FieldInfo) else [one])
    ]


def _of_type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _accepted(parts[0], parts[1:])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in parts)
    if origin is tuple:
        return "a list of mappings" if _models_in(parts[0]) else "a list of texts"
    if origin is Mapping:
        accepted = _of_type(parts[1])
        return f"a mapping of names to {'texts' if accepted == 'a text' else accepted}"
    if kinds := [_kind(model) for part in parts for model, _ in _models_in(part)][1:]:
        return f"a mapping, one of {len(kinds) + 1} kinds"
    if parts:  # an optional value
        return _of_type(next(part for part in parts if part is not NoneType))
    return "a mapping" if _models_in(annotation) else _PLAIN[annotation]


def _default(name: str, field: FieldInfo, accepted: str) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "default as below"
    if not value and accepted.startswith("even"):
        return "default `even`"
    if value is None or value in ((), {}):
        return "default none"
    return f"default `{_written(name, value, accepted)}`"


def _written(name: str, value: Any, accepted: str) -> str:
    """The value as people write it, with the unit that the key's name has."""
    if isinstance(value, bool):
        return str(value).lower()
    if "%" in accepted:
        return f"{value:.0%}"
    if name.endswith("bits_per_second"):
        return f"{value:g}bit"
    if name.endswith("seconds"):
        return f"{value:g}s"
    return f"{value:g}" if isinstance(value, float) else str(value)
