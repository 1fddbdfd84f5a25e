"""What can go wrong, by who must act and by exit code.

PlacewireError             1  this machine: a lab, a profile or the search
├── UsageError             2  the command line
│   └── CannotListen          the address that agents dial is taken
├── PlanError              3  plan.yaml: every mistake with its YAML path
├── InfeasiblePlacement    4  no placement fits the cluster
├── AgentProblem           5  a server
│   ├── AgentUnreachable      does not answer
│   ├── AgentRefused          answers that it cannot, and why
│   ├── StalePreview          would be changed otherwise than was previewed
│   └── ProvisionFailed       the agent could not be installed there, or removed
├── VerificationFailed     6  the network is not as promised; everything was restored
├── JobFailed              7  a rank
│   └── LaunchFailed          no program can be started on a server
└── RestoreFailed          8  something is left; says what and where
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placewire.agent.contract.measurement import LinkMeasurement
    from placewire.agent.contract.state import Refusal

AGENT_UNIT = "placewire-agent"
INTERRUPTED = 130

# What `controller` ends with, and what that says; the errors' own are theirs.
EXIT_CODES: Mapping[int, str] = {
    0: "done",
    1: "a lab, a profile or the search failed, or Placewire has a fault",
    2: "usage, or not confirmed; nothing was changed",
    3: "the plan is wrong",
    4: "no feasible placement",
    5: "an agent is unreachable or refuses, or a preview is stale",
    6: "the network is not as promised; apply restored everything, verify changed nothing",
    7: "the job failed, or could not be started; the network is restored",
    8: "restore itself failed; the message says what is left and where",
    INTERRUPTED: "interrupted, and everything put back",
}


def restore_by_hand(servers: Sequence[str]) -> str:
    """What a person does where an agent could not restore. A daemon that runs keeps the state
    locked, and systemd would start it again if it were only ended."""
    return (
        f"on {', '.join(servers)}, as root: `systemctl stop {AGENT_UNIT}`, then `agent restore`; "
        f"`agent status` shows what is left; then `systemctl start {AGENT_UNIT}`"
    )


class PlacewireError(Exception):
    """what happened, where (YAML path, server, NIC, queue, rank), and what to do.

    report: the RunReport of the run that it ended, as far as that came.
    """

    exit_code = 1
    report: Any = None

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.remedy = what, where, remedy

    def document(self) -> dict[str, Any]:
        """For --json."""
        error = {"what": self.what, "where": self.where, "remedy": self.remedy}
        return {"error": error, "exit_code": self.exit_code}

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  {self.remedy}" if self.remedy else ""
        return f"{place}{self.what}{advice}"


class UsageError(PlacewireError):
    exit_code = 2


class CannotListen(UsageError):
    """Somebody has that address, perhaps another controller."""


class PlanError(PlacewireError):
    """All mistakes of one plan: (YAML path, what was found, what would be accepted)."""

    exit_code = 3

    def __init__(self, file: str, mistakes: Sequence[tuple[str, str]]) -> None:
        self.mistakes = tuple(mistakes)
        lines = [f"  {path or 'plan'}: {message}" for path, message in self.mistakes]
        super().__init__("\n".join([f"{file} is not a valid plan:", *lines]))


class InfeasiblePlacement(PlacewireError):
    exit_code = 4


class AgentProblem(PlacewireError):
    """answered: replies of the servers that did answer in the same round, by server."""

    exit_code = 5

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        remedy: str = "",
        answered: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.answered = dict(answered or {})


class AgentUnreachable(AgentProblem):
    def __init__(
        self, servers: Sequence[str], *, why: str = "", answered: Mapping[str, Any] | None = None
    ) -> None:
        self.servers, self.why = tuple(servers), why
        super().__init__(
            f"no answer from the agent{'s' if len(servers) > 1 else ''}{': ' + why if why else ''}",
            where=", ".join(servers),
            remedy=(
                f"check that the agent runs there (`systemctl status {AGENT_UNIT}`) and reaches "
                "the controller"
            ),
            answered=answered,
        )


class AgentRefused(AgentProblem):
    def __init__(
        self, server: str, refusal: Refusal, *, answered: Mapping[str, Any] | None = None
    ) -> None:
        self.server, self.refusal = server, refusal
        super().__init__(
            refusal.what,
            where=f"{server} {refusal.where}".strip(),
            remedy=refusal.remedy,
            answered=answered,
        )


class StalePreview(AgentProblem):
    """differing: by server, what is not as it was shown."""

    def __init__(self, differing: Mapping[str, Sequence[str]]) -> None:
        self.differing = {server: tuple(some) for server, some in differing.items()}
        told = "; ".join(f"{server}: {', '.join(some)}" for server, some in differing.items())
        super().__init__(
            f"not as it was previewed; nothing was changed. {told}",
            where=", ".join(differing),
            remedy="look at it anew: `controller preview PLAN --out FILE`",
        )


class ProvisionFailed(AgentProblem):
    """outcomes: of every server, as documents."""

    def __init__(
        self, what: str, *, where: str, remedy: str, outcomes: Mapping[str, Mapping[str, Any]]
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.outcomes = outcomes

    def document(self) -> dict[str, Any]:
        return super().document() | {"servers": self.outcomes}


class VerificationFailed(PlacewireError):
    """links: every measurement, kept or not, as evidence."""

    exit_code = 6

    def __init__(
        self, what: str, *, where: str, remedy: str, links: Sequence[LinkMeasurement] = ()
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.links = tuple(links)

    def document(self) -> dict[str, Any]:
        return super().document() | {"links": [link.model_dump() for link in self.links]}


class JobFailed(PlacewireError):
    """rank: the one that is to blame, where one is."""

    exit_code = 7

    def __init__(
        self, what: str, *, where: str = "", remedy: str = "", rank: int | None = None
    ) -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.rank = rank


class LaunchFailed(JobFailed):
    """Nothing can be run on a server."""


class RestoreFailed(PlacewireError):
    exit_code = 8
