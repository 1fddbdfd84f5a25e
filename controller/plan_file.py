"""plan.yaml, parsed once.

Every mistake is reported with its YAML path, what was found and what would be accepted, all of them
at once, before anything is touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from controller.errors import PlanError
from controller.plan import PlacedJob, Plan, ReplayJob
from controller.plan_checks import mistakes_of
from controller.plan_values import shown

# A plan is nested 7 deep; a parser that calls itself must not run out of stack on another file.
_DEEPEST = 30


class _PlanLoader(yaml.SafeLoader):
    """YAML lets a key occur twice and keeps the last; a plan must not. Its keys are texts."""

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
        return super().construct_mapping(node, deep)


def _mistake(what: str, place: Any) -> yaml.MarkedYAMLError:
    """place: a node or an event of the YAML."""
    return yaml.MarkedYAMLError(problem=what, problem_mark=place.start_mark)


def _refuse_what_plans_never_have(text: str) -> None:
    """Tags, which name types of a program, and nesting without end. Raises yaml.YAMLError."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise _mistake(f"tag {shown(tag)} is not accepted; leave it out", event)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise _mistake(f"nested more than {_DEEPEST} deep", event)


def load_plan(path: Path) -> Plan:
    """Raises PlanError with every mistake found."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError(str(path), [("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8"
        raise PlanError(str(path), [("", message)]) from error
    try:
        _refuse_what_plans_never_have(text)
        document = yaml.load(text, Loader=_PlanLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise PlanError(str(path), [(place, f"not accepted as YAML: {problem}")]) from error
    except (ValueError, OverflowError) as error:
        # What looks like a date or a number to YAML, and is none.
        message = f"a value cannot be read: {error}; put it in quotes if it is a text"
        raise PlanError(str(path), [("", message)]) from error
    return parse_plan(document, str(path), base=path.resolve().parent)


def parse_plan(document: object, file: str, base: Path) -> Plan:
    """base: where relative graph files are looked for, beside the working directory."""
    if not isinstance(document, dict):
        raise PlanError(file, [("", "a plan is a mapping with version, name, cluster and job")])
    try:
        plan = Plan.model_validate(document)
    except ValidationError as error:
        raise PlanError(file, _explained(error, document)) from error
    if mistakes := list(mistakes_of(plan, base)):
        raise PlanError(file, mistakes)
    return plan


def _yaml_path(parts: tuple[int | str, ...], document: object) -> tuple[str, object]:
    """The path as a person would point at it; discriminator tags are no part of the YAML."""
    path, here = "", document
    for part in parts:
        if part == "[key]":  # the mistake is in the key itself, which the path already ends in
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


def _accepted(parts: tuple[int | str, ...]) -> str:
    """The keys that the mapping around an unknown key takes."""
    model: Any = Plan
    for part in parts[:-1]:
        if isinstance(part, int):
            continue
        if part in ("placed", "replay"):
            model = PlacedJob if part == "placed" else ReplayJob
            continue
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        if field is None:
            return ""
        model = _inner_model(field.annotation) or model
    return ", ".join(f.alias or name for name, f in model.model_fields.items())


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if found := _inner_model(argument):
            return found
    return None


def _explained(raised: ValidationError, document: object) -> list[tuple[str, str]]:
    """Each mistake once: a list whose entry is wrong is counted as too short as well."""
    errors: list[Any] = raised.errors(include_url=False)
    places = [error["loc"] for error in errors]

    def follows_from_another(error: Any) -> bool:
        here = error["loc"]
        deeper = any(len(loc) > len(here) and loc[: len(here)] == here for loc in places)
        return error["type"] == "too_short" and deeper

    return [_explain(error, document) for error in errors if not follows_from_another(error)]


def _explain(error: Any, document: object) -> tuple[str, str]:
    path, found = _yaml_path(error["loc"], document)
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return path, f"unknown key; accepted here: {_accepted(error['loc'])}"
    if kind == "missing":
        return path, "missing; it must be given"
    if kind == "value_error":
        return path, str(context.get("error", error["msg"]))
    if kind == "literal_error":
        return path, f"found {shown(found)}; accepted: {context['expected']}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag = "missing"
        if isinstance(found, dict) and "kind" in found:
            tag = f"found {shown(found['kind'])}"
        return f"{path}.kind", f"{tag}; accepted: 'placed' or 'replay'"
    if kind == "too_short":
        return path, f"found {shown(found)}; accepted: a list of at least {context['min_length']}"
    if kind == "tuple_type":
        return path, f"found {shown(found)}; accepted: a list, like [...]"
    if kind in ("model_type", "model_attributes_type"):
        keys = _accepted((*error["loc"], ""))
        return path, f"found {shown(found)}; accepted: a mapping with the keys {keys}"
    if kind in ("dict_type", "mapping_type"):
        return path, f"found {shown(found)}; accepted: a mapping of names to texts"
    return path, f"found {shown(found)}; {error['msg'].lower()}"
