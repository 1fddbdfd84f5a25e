"""The keys of what each command prints with --json, and what they are.

docs/reference/json.md is made of them. A docstring says when a command answers so, where it has
several answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict


class DetachAnswer(TypedDict):
    """with --detach"""

    plan: Annotated[str, "its name"]
    output: Annotated[str, "the file of what is printed"]


class IssueAnswer(TypedDict):
    server: Annotated[str, "its name"]
    files: Annotated[Sequence[str], "the paths that were written"]


class DenyAnswer(TypedDict):
    server: Annotated[str, "its name"]
    denied: Annotated[int, "how many certificates"]


class DestroyAnswer(TypedDict):
    changes: Annotated[Mapping[str, int], "by server, how many things changed"]
    others: Annotated[Mapping[str, str], "by server, a plan that shared it"]
    not_as_before: Annotated[
        NotRequired[Mapping[str, str]],
        "by server, what differs from what was there before; only where something does",
    ]
    forgotten: Annotated[
        NotRequired[Sequence[str]], "of `--forget`: servers that were given up, and not asked"
    ]


class DoctorAnswer(TypedDict):
    servers: Annotated[
        Mapping[str, Sequence[Mapping[str, Any]]],
        "by server, and under `this machine`, a list of findings (`severity`, `what`, `where`, "
        "`why`, `remedy`)",
    ]


class HistoryAnswer(TypedDict):
    decisions: Annotated[Sequence[Mapping[str, Any]], "the latest last"]
    runs: Annotated[Sequence[Mapping[str, Any]], "the latest last"]


class InitAnswer(TypedDict):
    plan: Annotated[str, "the file"]
    servers: Annotated[Sequence[str], "those that answered"]


class LabsAnswer(TypedDict):
    labs: Annotated[Sequence[str], "their names"]


class LogsAnswer(TypedDict):
    log: Annotated[str, "the file"]
    lines: Annotated[Sequence[Mapping[str, Any]], "each with `time`, `rank` and `text`"]


class PreviewAnswer(TypedDict):
    plan: Annotated[str, "its name"]
    predicted_step_seconds: Annotated[float | None, "null for a script"]
    changes: Annotated[Mapping[str, Sequence[Mapping[str, Any]]], "by server, a list of changes"]


class ProvisionAnswer(TypedDict):
    servers: Annotated[
        Mapping[str, Mapping[str, Any]],
        "by server `changed`, `notes`, and `failed` (`task`, `what`, `remedy`) or null",
    ]


class EarlierRecovery(TypedDict):
    decision: Annotated[
        int | None, "its number; null where no change was left, or the journal is lost"
    ]
    way: Annotated[
        str | None, "`undo`, `finish` or `destroy`; null where no change was left unfinished"
    ]
    by_lease: Annotated[Sequence[str], "servers that are undone when their lease ends"]


class RecoverAnswer(EarlierRecovery):
    earlier: Annotated[
        NotRequired[Sequence[EarlierRecovery]],
        "changes before that one that were left, too, each with the same keys; with a journal only",
    ]
    restored: Annotated[
        NotRequired[Sequence[str]], "the servers that were restored; without a journal only"
    ]


class RollbackAnswer(TypedDict):
    changes: Annotated[Mapping[str, int], "by server, how many things changed"]


class StatusAnswer(TypedDict):
    servers: Annotated[
        Mapping[str, Mapping[str, Any] | None],
        "by server what it has in force, or null where it does not answer",
    ]
    standing: Annotated[Mapping[str, Any], "what is in force as a whole: `decision` and `why`"]
    job: Annotated[Mapping[str, Any], "its ranks, and its last checkpoint"]
    left_open: Annotated[
        Mapping[str, Any] | None,
        "a change whose controller is gone: `decision`, `phase`, and `over` where no server holds "
        "anything of it any more; else null",
    ]
    dropped: Annotated[Sequence[str], "of servers that left the plan and still have its network"]


class UnderWayAnswer(TypedDict):
    """while another command changes servers or runs a job"""

    under_way: Annotated[
        Mapping[str, Any],
        "`holder`, the command; `latest`, the decision; `lines`, the last ones of the job's log",
    ]


class VerifyAnswer(TypedDict):
    decision: Annotated[str, "its digest"]
    links: Annotated[Sequence[Mapping[str, Any]], "the promised rates, as measured"]


class SnapshotAnswer(TypedDict):
    """with --snapshot"""

    snapshot: Annotated[str, "the file"]


class AsInSnapshotAnswer(TypedDict):
    """with --against-snapshot"""

    differences: Annotated[Mapping[str, Sequence[str]], "none: else the command fails"]


Answer = (
    DetachAnswer
    | IssueAnswer
    | DenyAnswer
    | DestroyAnswer
    | DoctorAnswer
    | HistoryAnswer
    | InitAnswer
    | LabsAnswer
    | LogsAnswer
    | PreviewAnswer
    | ProvisionAnswer
    | RecoverAnswer
    | RollbackAnswer
    | StatusAnswer
    | UnderWayAnswer
    | VerifyAnswer
    | SnapshotAnswer
    | AsInSnapshotAnswer
)
