"""Types of single values in plan.yaml outside its cluster: how each is parsed and what it accepts.

optimizer/cluster_plan/values.py has those of the cluster, and says how strict all of them are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from placewire.optimizer.capture.optimizer_options import DEFAULTS, is_class_path
from placewire.optimizer.cluster_plan.values import (
    Check,
    Text,
    name_of_at_most,
    quantity,
    server_name,
    shown,
    whole,
)
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.quantities import parse_fraction, parse_seconds

# YAML 1.1 reads such numbers as text: it requires a dot before, and a sign after, the letter e.
_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")
_ABOVE_0, _BELOW_1, _ABOVE_1 = math.nextafter(0, 1), math.nextafter(1, 0), math.nextafter(1, 2)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The marks by which Placewire finds what it started are variables, too.
_OWN_VARIABLES = "PLACEWIRE_"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
_USER_LENGTH = 64
# ssh and Ansible give them a meaning within the name of a file.
_MEANT_BY_SSH = "\"'\\$%`{}"
_OPTIMIZER_ACCEPTED = "adamw, adam, sgd, or a class as `module:Class`, like torch.optim:RMSprop"
_OPTION_ACCEPTED = "a number, true, false, or a list of numbers"
# Every whole number below it can also be a float.
_LARGEST_OPTION = 2**53


def _variable_name(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a variable's name; accepted: {_VARIABLE_ACCEPTED}")
    if text.startswith(_OWN_VARIABLES):
        raise ValueError(f"{shown(text)} is Placewire's own; accepted: {_VARIABLE_ACCEPTED}")
    return text


_VARIABLE_ACCEPTED = (
    f"letters, digits and _, no digit first, and nothing that begins with {_OWN_VARIABLES}"
)


def user_name(text: str) -> str:
    """Raises ValueError where a user cannot have this name."""
    if not _USER.fullmatch(text) or len(text) > _USER_LENGTH:
        raise ValueError(f"{shown(text)} is not a user's name; accepted: {_USER_ACCEPTED}")
    return text


_USER_ACCEPTED = f"letters, digits and . _ - @ +, none of . - @ + first, at most {_USER_LENGTH}"


def _secret_text(value: object) -> str:
    """Accepts any text. The message does not show what was found: it may be a password."""
    if not isinstance(value, str):
        hint = "; put it in quotes" if isinstance(value, int | float) else ""
        raise ValueError(f"the value is no text; accepted: a text{hint}")
    if "\0" in value:
        raise ValueError("a text must not contain a NUL character")
    return value


def _path(text: str) -> str:
    """Refuses `..`, so that a reader of the plan sees which folders it reaches; what a terminal
    would take for a command; and what a program would take for an option."""
    if not text or not text.isprintable() or text.startswith("-"):
        raise ValueError(f"{shown(text)} is not a path; accepted: printable characters, no - first")
    if ".." in text.split("/"):
        raise ValueError(
            f"{shown(text)} leaves its folder; give a path without '..', below the folder that it "
            "is looked for in, or an absolute one"
        )
    return text


def _command(given: object) -> tuple[str, ...]:
    """A text is a command of one word. Its first word is a program's name or path."""
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list | tuple) or not words:
        raise ValueError("no words; accepted: a path, or a list that begins with one")
    if not all(isinstance(word, str) and word for word in words):
        raise ValueError("a word that is no text; accepted: texts that are not empty")
    _path(words[0])
    return tuple(words)


def _path_for_ssh(text: str) -> str:
    if found := [c for c in _MEANT_BY_SSH if c in _path(text)]:
        raise ValueError(
            f"{shown(text)} has {found[0]}, which ssh would not take for a part of a file's name; "
            f"accepted: {_FOR_SSH_ACCEPTED}"
        )
    return text


_FOR_SSH_ACCEPTED = f"a path without `..` and without any of {' '.join(_MEANT_BY_SSH)}"


def _absolute_folder(text: str) -> str:
    if not _path(text).startswith("/"):
        raise ValueError(
            f"{shown(text)} is no absolute path; give the folder as every server sees it, like "
            "/shared/checkpoints"
        )
    return text


def _traffic(value: object) -> dict[str, dict[str, float]]:
    """Parses job.traffic. Returns an empty mapping for `even`."""
    if value == "even":
        return {}
    if not isinstance(value, dict) or not value:
        raise ValueError(
            f"found {shown(value)}; accepted: 'even', or a mapping of each sending server to a "
            "mapping of receiving servers to how much they get, in any one unit"
        )
    return {
        server_name(_text_of(source)): _traffic_row(f"of {source}", row)
        for source, row in value.items()
    }


def _traffic_row(where: str, row: object) -> dict[str, float]:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: found {shown(row)}; accepted: a mapping of servers to numbers")
    found = {}
    for destination, weight in row.items():
        name = server_name(_text_of(destination))
        number = _number(weight)
        if number < 0:
            raise ValueError(f"{where} to {name}: {number:g} is negative")
        found[name] = number
    return found


def _text_of(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"found {shown(value)}; accepted: a server's name")
    return value


def _version(value: object) -> object:
    """Refuses `true` and 1.0, which a plain Literal[1] would accept."""
    if type(value) is not int or value != 1:
        raise ValueError(f"found {shown(value)}; accepted: 1")
    return value


def _number(value: object) -> float:
    """Returns a finite number. Accepts 1e-3 too, which YAML reads as text."""
    written = value if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    if isinstance(written, str) and not _EXPONENT.fullmatch(written):
        raise ValueError(f"found {shown(value)}; accepted: a number")
    try:
        number = float(written)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"found {shown(value)}; accepted: a finite number")
    return number


def _seconds_or_number(value: object) -> float:
    """Parses 3s, or 3 for the same."""
    has_unit = isinstance(value, str) and value[-1:].isalpha()
    return parse_seconds(value) if has_unit else _number(value)


def _positive(high: float) -> Check:
    return quantity(_number, _ABOVE_0, high, f"more than 0, at most {high:g}")


def _optimizer_name(name: str) -> str:
    if name not in DEFAULTS and not is_class_path(name):
        raise ValueError(f"{shown(name)} is no optimizer; accepted: {_OPTIMIZER_ACCEPTED}")
    return name


def _option(value: object) -> bool | int | float | tuple[float, ...]:
    if isinstance(value, bool | int) and abs(value) < _LARGEST_OPTION:
        return value
    try:
        if isinstance(value, list | tuple):
            return tuple(map(_number, value))
        return _number(value)
    except ValueError:
        raise ValueError(f"found {shown(value)}; accepted: {_OPTION_ACCEPTED}") from None


def _engine(name: str) -> str:
    if name not in ENGINES:
        accepted = ", ".join(map(repr, ENGINES))
        raise ValueError(f"{shown(name)} is no engine; accepted: {accepted}")
    return name


def _or_auto(of: Check) -> Check:
    """Also accepts auto. Two types of a union would each have a message of their own."""
    accepted = f"{of.accepted}, or auto"

    def check(value: object) -> object:
        if value == "auto":
            return value
        try:
            return of(value)
        except ValueError:
            raise ValueError(f"found {shown(value)}; accepted: {accepted}") from None

    return Check(accepted, check)


_count = whole(1, 2**31 - 1)
_lease = quantity(parse_seconds, 10, 604_800, "10s to 168h")
_start_limit = quantity(parse_seconds, 10, 604_800, "10s to 168h")
_time_limit = quantity(parse_seconds, 1e-3, 604_800, "1ms to 168h")
_measured_seconds = quantity(
    _seconds_or_number, 1, 60, "1s to 60s; a number without a unit is seconds"
)
_folder = Check("an absolute path, like /shared/checkpoints", _absolute_folder)
_matrix = Check(
    "even, or a mapping of each sending server to a mapping of receiving servers to numbers",
    _traffic,
)
# A gap of 1 would accept any placement, so the optimizer refuses it too.
_gap = quantity(parse_fraction, 0, _BELOW_1, "0% to below 100%")
# HTB needs a guaranteed rate above zero.
_floor = quantity(parse_fraction, 0.01, 1, "1% to 100%")

OptimizerName = Annotated[Text, AfterValidator(Check(_OPTIMIZER_ACCEPTED, _optimizer_name))]
OptionValue = Annotated[
    bool | int | float | tuple[float, ...], BeforeValidator(Check(_OPTION_ACCEPTED, _option))
]
EngineName = Annotated[
    Text, AfterValidator(Check("an engine that `optimizer engines` lists", _engine))
]
VariableName = Annotated[Text, AfterValidator(Check(_VARIABLE_ACCEPTED, _variable_name))]
UserName = Annotated[Text, AfterValidator(Check(_USER_ACCEPTED, user_name))]
PlanName = Annotated[Text, AfterValidator(name_of_at_most(24))]
SecretText = Annotated[str, BeforeValidator(Check("a text", _secret_text))]
PathText = Annotated[Text, AfterValidator(Check("a path without `..`", _path))]
CommandWords = Annotated[
    tuple[Text, ...], BeforeValidator(Check("a path, or a list that begins with one", _command))
]
SshPath = Annotated[Text, AfterValidator(Check(_FOR_SSH_ACCEPTED, _path_for_ssh))]
Folder = Annotated[Text, AfterValidator(_folder)]
Version = BeforeValidator(Check("1", _version))
TrafficMatrix = Annotated[Mapping[str, Mapping[str, float]], BeforeValidator(_matrix)]
Count = Annotated[int, BeforeValidator(_count)]
CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_or_auto(_count))]
TcpPort = Annotated[int, BeforeValidator(whole(1, 65_535))]
# AF21, which RFC 4594 calls low-latency data.
LOW_LATENCY_DATA = 18
Dscp = Annotated[int, BeforeValidator(whole(0, 63))]
Threads = Annotated[int, BeforeValidator(whole(1, 1024))]
Warmup = Annotated[int, BeforeValidator(whole(0, 2**31 - 1))]
Seed = Annotated[int, BeforeValidator(whole(0, 2**32 - 1))]
Lease = Annotated[float, BeforeValidator(_lease)]
StartLimit = Annotated[float, BeforeValidator(_start_limit)]
TimeLimit = Annotated[float, BeforeValidator(_time_limit)]
Fraction = Annotated[float, BeforeValidator(quantity(parse_fraction, 0, 1, "0% to 100%"))]
Floor = Annotated[float, BeforeValidator(_floor)]
Gap = Annotated[float, BeforeValidator(_gap)]
LearningRate = Annotated[float, BeforeValidator(_positive(1e6))]
Momentum = Annotated[float, BeforeValidator(quantity(_number, 0, _BELOW_1, "0 to below 1"))]
WeightDecay = Annotated[float, BeforeValidator(quantity(_number, 0, 1e6, "0 to 1e+06"))]
Scale = Annotated[float, BeforeValidator(_positive(2.0**100))]
Growth = Annotated[float, BeforeValidator(quantity(_number, _ABOVE_1, 1e6, "more than 1 to 1e+06"))]
Backoff = Annotated[
    float, BeforeValidator(quantity(_number, _ABOVE_0, _BELOW_1, "more than 0 to below 1"))
]
Norm = Annotated[float, BeforeValidator(_positive(1e12))]
TimeScale = Annotated[float, BeforeValidator(_positive(1e9))]
MeasuredSeconds = Annotated[float, BeforeValidator(_measured_seconds)]
