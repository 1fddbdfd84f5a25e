"""Reads YAML as plans may use it into types, and reports all mistakes at once, by YAML path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from placewire.optimizer.cluster_plan.values import MOST_SERVERS, Check, shown

# (YAML path, what was found and what is accepted); the path is "" for the whole file.
Mistake = tuple[str, str]
_Model = TypeVar("_Model", bound=BaseModel)

# A plan is nested 7 deep. The parser is recursive, and no other file may exhaust its stack.
_DEEPEST = 30
# Of 2000 servers with 8 NICs each, a plan has 2.3 MiB in 250,000 parts, and is read in two seconds.
_LARGEST_BYTES = 4 * 2**20
_MOST_PARTS = 500_000
# A number of a plan has some twenty characters. YAML reads `1:1:1` as a number, too, in a time that
# grows with the square of its length, and 0xfff… as one that cannot be shown.
_LONGEST_NUMBER = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# Only a plan whose matrix names all pairs of more than about 450 servers exceeds these limits.
_SPARSE = "in job.traffic, name only the pairs that send, or write `even`"
# The same in C where PyYAML was built with it: ten times as fast.
_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(ValueError):
    """A file has mistakes: all that were found in it."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(f"{path}: {what}" if path else what for path, what in mistakes))


class _PlainLoader(_Loader):  # type: ignore[valid-type,misc]
    """Refuses keys that are not texts or occur twice, of which YAML would keep the last, and
    numbers that are longer than any of a plan."""

    def construct_scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
            what = f"a number of more than {_LONGEST_NUMBER} characters; put it in quotes if it is"
            raise _mistake(f"{what} a text", node)
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise _mistake("<< is not accepted; write the keys out", key_node)
            if key is None or key_node.tag != "tag:yaml.org,2002:str":
                found = "this key" if key is None else f"key {shown(key)}"
                raise _mistake(f"{found} is no text; put it in quotes", key_node)
            if key in seen:
                raise _mistake(f"key {shown(key)} occurs twice", key_node)
            seen.add(key)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def _mistake(what: str, place: Any) -> yaml.MarkedYAMLError:
    """place: the node or event of the YAML that is wrong."""
    return yaml.MarkedYAMLError(problem=what, problem_mark=place.start_mark)


def _refuse_what_plans_never_have(text: str) -> None:
    """Refuses tags, which name types of a program, deep nesting, and more parts than a plan can
    need. Raises yaml.YAMLError."""
    # Of the collections that this event is in: the anchor, and how many parts it has until here.
    within: list[tuple[str | None, int]] = [(None, 0)]
    parts_of: dict[str | None, int] = {}
    for event in yaml.parse(text, Loader=_Loader):
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise _mistake(f"tag {shown(tag)} is not accepted; leave it out", event)
        anchor, added = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            within.append((anchor, 0))
            if len(within) > _DEEPEST + 1:
                raise _mistake(f"nested more than {_DEEPEST} deep", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            ended, added = within.pop()
            parts_of[ended] = added
        elif isinstance(event, yaml.AliasEvent):
            # An alias stands for all parts of what it names, as often as it is written.
            added = parts_of.get(anchor, 1)
        around, before = within[-1]
        within[-1] = around, before + added
        if before + added > _MOST_PARTS:
            more = f"more than {_MOST_PARTS} keys, values and lists, aliases written out; {_SPARSE}"
            raise _mistake(more, event)


def read_yaml(path: Path) -> object:
    """Raises OSError; DocumentError where the file is too large, no UTF-8, or no YAML as plans may
    use it."""
    with path.open("rb") as file:
        data = file.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        most = f"more than {_LARGEST_BYTES // 2**20} MiB"
        raise DocumentError([("", f"{most}; accepted: at most {MOST_SERVERS} servers; {_SPARSE}")])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8"
        raise DocumentError([("", message)]) from error
    try:
        _refuse_what_plans_never_have(text)
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        if mark and "".join(text.split("\n")[mark.line : mark.line + 1])[mark.column :][:1] == "\t":
            problem = "a tab stands where the line is indented; indent it by spaces"
        raise DocumentError([(place, f"not accepted as YAML: {problem}")]) from error
    except (ValueError, OverflowError) as error:
        # A value that YAML takes for a date or a number, but that is not a valid one.
        message = f"a value cannot be read: {error}; put it in quotes if it is a text"
        raise DocumentError([("", message)]) from error


def parsed(model: type[_Model], document: object) -> _Model:
    """The document as `model`. Raises DocumentError with every mistake that was found."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise DocumentError(_explained(error, document, model)) from error


def _explained(raised: ValidationError, document: object, model: type[BaseModel]) -> list[Mistake]:
    """Each mistake once: pydantic also calls a list too short whose entry is wrong."""
    errors: list[Any] = raised.errors(include_url=False)

    def holds_another(here: tuple[int | str, ...]) -> bool:
        return any(e["loc"] != here and e["loc"][: len(here)] == here for e in errors)

    return [
        _explain(error, document, model)
        for error in errors
        if error["type"] != "too_short" or not holds_another(error["loc"])
    ]


def _explain(error: Any, document: object, model: type[BaseModel]) -> Mistake:
    path, found = _yaml_path(error["loc"], document)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return path, f"unknown key; accepted here: {_keys(_models_at(model, error['loc'][:-1]))}"
    if kind == "missing":
        return path, f"missing; it must be given: {_meaning(model, error['loc'])}"
    if kind == "value_error":
        return path, str(context.get("error", error["msg"]))
    if kind == "literal_error":
        return path, f"found {shown(found)}; accepted: {context['expected']}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = "missing"
        if isinstance(found, dict) and "kind" in found:
            tag = f"found {shown(found['kind'])}"
        kinds = [repr(_kind(choice)) for choice in _models_at(model, error["loc"])]
        return f"{path}.kind", f"{tag}; accepted: {' or '.join(kinds)}"
    if kind == "too_long":
        found, most = context["actual_length"] or "more", context["max_length"]
        return path, f"found {found}; accepted: a list of at most {most}"
    if kind == "too_short":
        return path, f"found {shown(found)}; accepted: a list of at least {context['min_length']}"
    if kind == "tuple_type":
        return path, f"found {shown(found)}; accepted: a list, like [...]"
    if kind in ("model_type", "model_attributes_type"):
        keys = _keys(_models_at(model, error["loc"]))
        return path, f"found {shown(found)}; accepted: a mapping with the keys {keys}"
    if kind in ("dict_type", "mapping_type"):
        # The message must not show what was found: these are variables, and one may be a password.
        return path, "what was found is no mapping; accepted: a mapping of names to texts"
    return path, f"found {shown(found)}; {error['msg'].lower()}"


def _yaml_path(parts: tuple[int | str, ...], document: object) -> tuple[str, object]:
    """(the path as a person would write it, the value there). pydantic's own path also contains the
    tag of a chosen kind, which is no key of the YAML."""
    path, here = "", document
    for part in parts:
        if part == "[key]":  # the mistake is in the key itself, with which the path already ends
            break
        if isinstance(part, int) and isinstance(here, list) and part < len(here):
            path, here = f"{path}[{part}]", here[part]
        elif isinstance(here, dict) and part in here:
            path, here = f"{path}.{part}" if path else str(part), here[part]
        elif isinstance(here, dict) and here.get("kind") == part:
            continue
        else:
            path, here = f"{path}.{part}" if path else str(part), None
    return path, here


def _models_at(model: type[BaseModel], parts: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """The models that may stand at this place: several where no `kind` was chosen."""
    here = [model]
    for part in parts:
        if isinstance(part, int):
            continue
        if chosen := [choice for choice in here if _kind(choice) == part]:
            here = chosen
            continue
        fields = [f for m in here for n, f in m.model_fields.items() if part in (n, f.alias)]
        here = _models_within(fields[0].annotation) if fields else []
    return here


def _meaning(model: type[BaseModel], parts: tuple[int | str, ...]) -> str:
    """What a key says, and which values it takes where a check knows it."""
    fields = [
        field
        for holder in _models_at(model, parts[:-1])
        for name, field in holder.model_fields.items()
        if parts[-1] in (name, field.alias)
    ]
    checks = [getattr(one, "func", None) for one in fields[0].metadata]
    accepted = [f"; accepted: {one.accepted}" for one in checks if isinstance(one, Check)]
    return f"{fields[0].description}{''.join(accepted[-1:])}"


def _models_within(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in get_args(annotation) for m in _models_within(argument)]


def _kind(model: type[BaseModel]) -> str | None:
    """The value of `kind` that chooses this model, in a union that `kind` discriminates."""
    field = model.model_fields.get("kind")
    return str(get_args(field.annotation)[0]) if field else None


def _keys(models: Sequence[type[BaseModel]]) -> str:
    keys = [f.alias or name for model in models for name, f in model.model_fields.items()]
    return ", ".join(dict.fromkeys(keys))
