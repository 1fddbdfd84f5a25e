"""The keys of what each command prints with --json, and what they are.

docs/reference/json.md is made of them, and of the classes of what is printed as it is: `explain`'s
Explanation, and the placement of `solve`. A docstring says when a command answers so, where it has
several answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from placewire.visible import json_document


class AdviseAnswer(TypedDict):
    rows: Annotated[
        Sequence[Mapping[str, Any]], "one of each way to train, the shortest step first"
    ]
    bound_seconds: Annotated[float | None, "what no placement beats; null where none was found"]
    advice: Annotated[str, "in a sentence"]
    spread: Annotated[str, "how the found placement trains in parallel, in words"]


class CheckAnswer(TypedDict):
    violations: Annotated[
        Sequence[Mapping[str, str]], "each with `where` and `what`; none where the placement holds"
    ]


class CompareAnswer(TypedDict):
    rows: Annotated[Sequence[Mapping[str, Any]], "one of each case"]


class PresetAnswer(TypedDict):
    """with --preset"""

    title: Annotated[str, "what is reproduced"]
    figures: Annotated[
        Sequence[Mapping[str, Any]], "each with `model`, `what`, `paper`, `ours` and `why`"
    ]
    differs: Annotated[Sequence[str], "how the settings differ from the paper's"]


class MethodsAnswer(TypedDict):
    methods: Annotated[
        Sequence[Mapping[str, Any]],
        "each with `name`, `package`, and what it is, or why it is `broken`; with a graph "
        "`refusal`, null where it accepts",
    ]


Answer = AdviseAnswer | CheckAnswer | CompareAnswer | PresetAnswer | MethodsAnswer


def answered(answer: Answer) -> str:
    """Returns what the command prints."""
    return json_document(answer)
