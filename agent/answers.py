"""The keys of what each command prints with --json, and what they are.

docs/reference/json.md is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from placewire.visible import json_document


class DoctorAnswer(TypedDict):
    server: Annotated[str, "its name"]
    exit_code: Annotated[int, "as the command ends"]
    findings: Annotated[
        Sequence[Mapping[str, Any]], "each with `severity`, `what`, `where`, `why` and `remedy`"
    ]
    facts: Annotated[Mapping[str, Any], "what they follow from"]


class StatusAnswer(TypedDict):
    state: Annotated[Mapping[str, Any], "what Placewire made on the server, and its NICs"]
    lease: Annotated[Mapping[str, Any], "what is in force, of which plan, and for how long"]
    problems: Annotated[Sequence[str], "in sentences"]


def answered(answer: DoctorAnswer | StatusAnswer) -> str:
    """Returns what the command prints."""
    return json_document(answer, indent=2)
