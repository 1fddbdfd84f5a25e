"""The controller's errors and their exit codes.

PlacewireError             1  a lab, a profile or the search failed on this machine
├── OutOfMemory            1  a profile needs more memory than its server has
├── JournalFailed          1  the journal cannot be read or written
├── UsageError             2  the command line is wrong
│   ├── CannotListen          the address that agents dial is taken
│   └── ChangeUnderWay        by another command, to which agents dial in
├── PlanError              3  plan.yaml has mistakes; each is told with its YAML path
├── InfeasiblePlacement    4  no placement fits the cluster
├── AgentProblem           5  an agent or its server is at fault:
│   ├── AgentUnreachable      it does not answer
│   ├── AgentRefused          it refuses, and says why
│   ├── StalePreview          its changes would be others than were previewed
│   └── ProvisionFailed       it could not be installed or removed
├── VerificationFailed     6  the network is not as promised; everything was restored
│   └── NotAsInSnapshot       something of a server differs from a snapshot of it
├── JobFailed              7  a rank failed
│   └── LaunchFailed          no program can be started on a server
└── RestoreFailed          8  something could not be restored; the message says what and where
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

from placewire.command_line import INTERRUPTED
from placewire.controller.agent_advice import find_out_why
from placewire.visible import visible

if TYPE_CHECKING:
    from placewire.agent.contract.measurement import LinkMeasurement
    from placewire.agent.contract.state import Refusal

EXIT_CODES: Mapping[int, str] = {
    0: "done",
    1: "a lab, profile, search, journal or --json output failed, or Placewire has a fault",
    2: "usage, or not confirmed; nothing was changed",
    3: "the plan is wrong",
    4: "no feasible placement",
    5: "an agent is unreachable or refuses, or a preview is stale",
    6: "the network is not as promised; apply restored everything, verify changed nothing",
    7: "the job failed, or could not be started; the network is restored",
    8: "restore itself failed; the message says what is left and where",
    INTERRUPTED: "interrupted; the message says what was put back or carried out; what "
    "provision did stays",
}


class Error(TypedDict):
    what: str
    where: str
    remedy: str


class ErrorAnswer(TypedDict):
    """where it fails"""

    error: Annotated[Error, "`what`, `where` and `remedy`, each a text"]
    exit_code: Annotated[int, "as the command ends"]
    holds: Annotated[NotRequired[Mapping[str, str]], "by server, what it holds now"]
    servers: Annotated[
        NotRequired[Mapping[str, Mapping[str, Any]]], "of `provision`: as without an error"
    ]
    links: Annotated[
        NotRequired[Sequence[Mapping[str, Any]]], "the rates, as measured, where some are not kept"
    ]
    differences: Annotated[
        NotRequired[Mapping[str, Sequence[str]]],
        "of `verify`: by server, what differs from a snapshot, in sentences",
    ]


class PlacewireError(Exception):
    """what: what happened. where: a YAML path, server, NIC, queue or rank. remedy: what to do.
    holds: by server, in words, what it holds now, where a command was done on some servers only."""

    exit_code = 1
    holds: Mapping[str, str] = MappingProxyType({})

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.remedy = what, where, remedy

    def document(self) -> ErrorAnswer:
        """The error as `--json` prints it."""
        error: Error = {"what": self.what, "where": self.where, "remedy": self.remedy}
        answer: ErrorAnswer = {"error": error, "exit_code": self.exit_code}
        if self.holds:
            answer["holds"] = dict(self.holds)
        return answer

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  {self.remedy}" if self.remedy else ""
        holds = "".join(f"\n  {server}: {words}" for server, words in self.holds.items())
        return f"{place}{self.what}{holds}{advice}"


class JournalFailed(PlacewireError):
    """Another process holds the journal, the disk is full, or the file is damaged."""


class UsageError(PlacewireError):
    exit_code = 2


class CannotListen(UsageError):
    """Another process, perhaps another controller, listens at the address already."""


class ChangeUnderWay(UsageError):
    """Another command changes servers, or runs a job, and agents dial in to it. holder: which
    process it is, and since when, in words."""

    def __init__(self, holder: str, *, where: str) -> None:
        super().__init__(
            f"another change is under way: {holder}",
            where=where,
            remedy="agents dial in to that controller; wait for it to end, or interrupt it: "
            "`controller attach PLAN --stop`, where it was begun with --detach",
        )
        self.holder = holder


class PlanError(PlacewireError):
    """mistakes: all of one plan, each a YAML path and a message."""

    exit_code = 3

    def __init__(self, file: str, mistakes: Sequence[tuple[str, str]]) -> None:
        self.mistakes = tuple(mistakes)
        lines = [f"  {path or 'plan'}: {message}" for path, message in self.mistakes]
        super().__init__("\n".join([f"{file} is not a valid plan:", *lines]))


class InfeasiblePlacement(PlacewireError):
    exit_code = 4


class AgentProblem(PlacewireError):
    """answered: by server, the replies of those that did answer the same request."""

    exit_code = 5
    answered: Mapping[str, Any] = MappingProxyType({})


class AgentUnreachable(AgentProblem):
    def __init__(
        self, servers: Sequence[str], *, why: str = "", answered: Mapping[str, Any] | None = None,
        remedy: str = "",
    ) -> None:  # fmt: skip
        self.servers, self.why, self.answered = tuple(servers), why, dict(answered or {})
        super().__init__(
            f"no answer from the agent{'s' if len(servers) > 1 else ''}{': ' + why if why else ''}",
            where=", ".join(servers),
            remedy=remedy or find_out_why(servers),
        )


class AgentRefused(AgentProblem):
    def __init__(
        self, server: str, refusal: Refusal, *, answered: Mapping[str, Any] | None = None
    ) -> None:
        self.refusal, self.answered = refusal, dict(answered or {})
        where = visible(f"{server} {refusal.where}".strip())
        super().__init__(visible(refusal.what), where=where, remedy=visible(refusal.remedy))


class StalePreview(AgentProblem):
    """differing: by server, what differs from the preview. made: whether the changes were made
    already; the caller undoes them."""

    def __init__(self, differing: Mapping[str, Sequence[str]], *, made: bool = False) -> None:
        self.differing = {server: tuple(some) for server, some in differing.items()}
        told = "; ".join(f"{server}: {', '.join(some)}" for server, some in differing.items())
        ended = "every server is put back" if made else "nothing was changed"
        super().__init__(
            f"the changes are not as they were previewed; {ended}. {told}",
            where=", ".join(differing),
            remedy="preview the plan again: `controller preview PLAN --out FILE`",
        )


class ProvisionFailed(AgentProblem):
    """outcomes: by server, what the playbook did there, as JSON objects."""

    def __init__(
        self, what: str, *, where: str, remedy: str, outcomes: Mapping[str, Mapping[str, Any]]
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.outcomes = outcomes

    def document(self) -> ErrorAnswer:
        return {**super().document(), "servers": self.outcomes}


class VerificationFailed(PlacewireError):
    """links: every measurement, of rates that were delivered and of those that were not."""

    exit_code = 6

    def __init__(
        self, what: str, *, where: str, remedy: str, links: Sequence[LinkMeasurement] = ()
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.links = tuple(links)

    def document(self) -> ErrorAnswer:
        return {**super().document(), "links": [link.model_dump() for link in self.links]}


class NotAsInSnapshot(VerificationFailed):
    """differences: by server, a sentence for each thing that differs."""

    def __init__(self, file: str, differences: Mapping[str, Sequence[str]]) -> None:
        self.differences = {server: tuple(some) for server, some in differences.items()}
        count = sum(map(len, self.differences.values()))
        things = "1 thing differs" if count == 1 else f"{count} things differ"
        super().__init__(
            f"{things} from the snapshot {file}",
            where=", ".join(self.differences),
            remedy="nothing was changed; what a plan keeps in force differs as well, until it is "
            "destroyed",
        )

    def document(self) -> ErrorAnswer:
        return {**super().document(), "differences": self.differences}


class JobFailed(PlacewireError):
    """rank: the rank that caused the failure; None where no single one did."""

    exit_code = 7

    def __init__(
        self, what: str, *, where: str = "", remedy: str = "", rank: int | None = None
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.rank = rank


class OutOfMemory(PlacewireError):
    """A profile needs more memory than there is."""


class Occupied(JobFailed):
    """What is to be measured would not run alone, on any server that it could be measured on."""


class LaunchFailed(JobFailed):
    """No program can be started on a server, or its programs cannot be listed. found: ranks
    (RunningProgram) on the servers that could be looked at."""

    def __init__(
        self, what: str, *, where: str = "", remedy: str = "", rank: int | None = None,
        found: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        super().__init__(what, where=where, remedy=remedy, rank=rank)
        self.found = tuple(found)


class RestoreFailed(PlacewireError):
    exit_code = 8
