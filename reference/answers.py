"""Describes what commands print with --json, from the classes of their answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, NotRequired, get_args, get_origin, get_type_hints

import placewire.agent.answers as agent
import placewire.controller.commands.answers as controller
import placewire.optimizer.commands.answers as optimizer
from placewire.controller.errors import ErrorAnswer
from placewire.optimizer.explain.explanation import Explanation
from reference.text import item, paragraph

_RUN = "It is the run's report, with `--network-only`, too: [run.json](../files.md#runjson)."
_PLACEMENT = "It is the [placement](../files.md#placement)."
_ADVICE = "As `optimizer advise`."
_ANY = ""
# By program and command: the classes of its answers, or a sentence about another document.
ANSWERS: Mapping[str, Mapping[str, tuple[type | str, ...]]] = {
    "controller": {
        _ANY: (ErrorAnswer,),
        "advise": (_ADVICE,),
        "apply": (_RUN, controller.DetachAnswer),
        "authority issue": (controller.IssueAnswer,),
        "authority deny": (controller.DenyAnswer,),
        "destroy": (controller.DestroyAnswer,),
        "doctor": (controller.DoctorAnswer,),
        "history": (controller.HistoryAnswer,),
        "init": (controller.InitAnswer,),
        "lab list": (controller.LabsAnswer,),
        "logs": (controller.LogsAnswer,),
        "preview": (controller.PreviewAnswer,),
        "provision": (controller.ProvisionAnswer,),
        "recover": (controller.RecoverAnswer,),
        "rollback": (controller.RollbackAnswer,),
        "status": (controller.StatusAnswer, controller.UnderWayAnswer),
        "verify": (
            controller.VerifyAnswer,
            controller.SnapshotAnswer,
            controller.AsInSnapshotAnswer,
        ),
    },
    "optimizer": {
        "advise": (optimizer.AdviseAnswer,),
        "check": (optimizer.CheckAnswer,),
        "compare": (optimizer.CompareAnswer, optimizer.PresetAnswer),
        "engines": (optimizer.MethodsAnswer,),
        "explain": (Explanation,),
        "reductions": (optimizer.MethodsAnswer,),
        "solve": (_PLACEMENT,),
    },
    "agent": {"doctor": (agent.DoctorAnswer,), "status": (agent.StatusAnswer,)},
}


def answer_lines(program: str) -> Iterator[str]:
    """A section for each command of the program."""
    yield from (f"## {program}", "")
    for command, answers in ANSWERS[program].items():
        named = f"any command of {program}" if command == _ANY else f"{program} {command}"
        yield from (f"### {named}", "")
        for one in answers:
            yield from _answer(one)
            yield ""


def _answer(one: type | str) -> Iterator[str]:
    if isinstance(one, str):
        yield paragraph(one)
    elif is_dataclass(one):
        yield paragraph(", ".join(f"`{field.name}`" for field in fields(one)))
    else:
        if about := one.__doc__:
            yield from (paragraph(f"{about[0].upper()}{about[1:]}:"), "")
        yield from (item(f"`{key}`: {meaning}") for key, meaning in meanings(one).items())


def meanings(answer: type) -> Mapping[str, str]:
    """By key, in its order, what the class says of it."""
    hints = get_type_hints(answer, include_extras=True)
    return {key: _meaning(hint) for key, hint in hints.items()}


def _meaning(hint: Any) -> str:
    if get_origin(hint) is NotRequired:
        (hint,) = get_args(hint)
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{hint} says nothing of its key")
    meaning: str = hint.__metadata__[0]
    return meaning
