"""The messages between the controller and an agent.

The agent dials out (HTTPS, mutual TLS):
  POST /v1/hello      Hello     -> Welcome      once per connection attempt
  POST /v1/poll       Poll      -> Envelope[]   long poll, at most POLL_SECONDS
  POST /v1/replies    Reply                     as requests finish, in any order
A request names what it is by `request`; its reply carries the same id and either result or refusal.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.measurement import (
    InterfaceCounters,
    Neighbour,
    Transfer,
    TransferResult,
)
from placewire.agent.contract.numbers import (
    Generation,
    LeaseSeconds,
    MeasurementSeconds,
    UnixSeconds,
)
from placewire.agent.contract.state import (
    ApplyReport,
    Change,
    DesiredState,
    DriftState,
    LeaseState,
    ObservedState,
    Refusal,
)
from placewire.frozen import Frozen

PROTOCOL_VERSION = 2
POLL_SECONDS = 10.0


class Hello(Frozen):
    """management: this server's address on the way to the controller; None: there is no way now.
    protected: interfaces that its configuration forbids to touch. instance: another one at each
    start of an agent."""

    version: int = PROTOCOL_VERSION
    server: str
    agent_pid: int
    instance: str = ""
    capabilities: Capabilities
    lease: LeaseState
    management: str | None = None
    protected: tuple[str, ...] = ()


class Welcome(Frozen):
    session: str


class Poll(Frozen):
    session: str


class Observe(Frozen):
    """-> Observation"""

    request: Literal["observe"] = "observe"


class Observation(Frozen):
    state: ObservedState
    lease: LeaseState


class Preview(Frozen):
    """The changes that staging `desired` would make; touches nothing. -> Previewed"""

    request: Literal["preview"] = "preview"
    desired: DesiredState


class Previewed(Frozen):
    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]
    lease: LeaseState


class Stage(Frozen):
    """Apply `desired` under a lease, and read it back; after a failure bring the baseline back.
    -> ApplyReport"""

    request: Literal["stage"] = "stage"
    desired: DesiredState
    lease_seconds: LeaseSeconds


class Renew(Frozen):
    """Extend a staged or committed lease. -> LeaseState"""

    request: Literal["renew"] = "renew"
    generation: Generation
    lease_seconds: LeaseSeconds


class Commit(Frozen):
    """The decision was to keep it; lease_seconds None: without expiry. -> LeaseState"""

    request: Literal["commit"] = "commit"
    generation: Generation
    lease_seconds: LeaseSeconds | None


class Restore(Frozen):
    """End the lease now: bring back its baseline. -> ApplyReport"""

    request: Literal["restore"] = "restore"
    generation: Generation


class Destroy(Frozen):
    """Remove all that this plan made and put back what was there before. Refused where another
    plan's state is in force. -> ApplyReport"""

    request: Literal["destroy"] = "destroy"
    plan_name: str


class ReadBack(Frozen):
    """Read back what the network really does, and compare it with the state in force.
    -> ReadBackResult"""

    request: Literal["read_back"] = "read_back"
    generation: Generation


class ReadBackResult(Frozen):
    """deviations and problems are read when asked; drift is what was seen up to now."""

    deviations: tuple[Change, ...]
    problems: tuple[str, ...]
    drift: DriftState | None = None


class StartServers(Frozen):
    """Listen for these transfers (this server is their destination). -> Listening"""

    request: Literal["start_servers"] = "start_servers"
    transfers: tuple[Transfer, ...]
    seconds: MeasurementSeconds


class Listening(Frozen):
    """clock_unix: the agent's clock when it answered, so that a start that is given in the
    controller's clock can be translated to it."""

    tcp_ports: tuple[int, ...]
    clock_unix: float = 0.0


class RunTransfers(Frozen):
    """Send all of these at once (this server is their source). -> TransferResults

    start_unix: begin then, so that every server's transfers overlap.
    """

    request: Literal["run_transfers"] = "run_transfers"
    transfers: tuple[Transfer, ...]
    seconds: MeasurementSeconds
    start_unix: UnixSeconds


class TransferResults(Frozen):
    results: tuple[TransferResult, ...]


class StopServers(Frozen):
    """-> Listening, with no port"""

    request: Literal["stop_servers"] = "stop_servers"


class ReadCounters(Frozen):
    """-> Counters"""

    request: Literal["read_counters"] = "read_counters"
    interfaces: tuple[str, ...]


class Counters(Frozen):
    counters: tuple[InterfaceCounters, ...]


class FindNeighbours(Frozen):
    """Ask for these addresses (ARP) on the wire of each of these bridges of ours. -> Neighbours"""

    request: Literal["find_neighbours"] = "find_neighbours"
    interfaces: tuple[str, ...] = Field(max_length=64)
    addresses: tuple[str, ...] = Field(max_length=512)


class Neighbours(Frozen):
    found: tuple[Neighbour, ...]


class Diagnose(Frozen):
    """Look for what stands in the way; changes nothing. -> Diagnosis"""

    request: Literal["diagnose"] = "diagnose"


Request = Annotated[
    Observe
    | Preview
    | Stage
    | Renew
    | Commit
    | Restore
    | Destroy
    | ReadBack
    | StartServers
    | RunTransfers
    | StopServers
    | ReadCounters
    | FindNeighbours
    | Diagnose,
    Field(discriminator="request"),
]


class Envelope(Frozen):
    id: str
    body: Request


class Envelopes(Frozen):
    envelopes: tuple[Envelope, ...]


class Reply(Frozen):
    """result: the reply type named at the request, as JSON; refusal: why it could not be done."""

    session: str
    id: str
    result: dict[str, Any] | None = None
    refusal: Refusal | None = None


__all__ = [
    "ApplyReport", "Capabilities", "Commit", "Counters", "Destroy", "Envelope", "Envelopes",
    "FindNeighbours", "Hello", "Listening", "Neighbours", "Observation", "Observe", "Poll",
    "Preview", "Previewed", "ReadBack", "ReadBackResult", "ReadCounters", "Renew", "Reply",
    "Request", "Restore", "RunTransfers", "Stage", "StartServers", "StopServers",
    "TransferResults", "Welcome",
]  # fmt: skip
