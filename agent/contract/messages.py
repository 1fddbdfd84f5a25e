"""The messages between the controller and an agent.

The agent dials the controller (HTTPS, mutual TLS):
  POST /v1/hello      Hello     -> Welcome      once per connection attempt, and on news
  POST /v1/poll       Poll      -> Envelopes    long poll, at most POLL_SECONDS
  POST /v1/replies    Reply                     as requests finish, in any order
The key `request` says which request a message is; its reply has the same id, and a result or a
refusal. `-> X` in the docstring of a request names the type of its result.
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
    ClockUnixSeconds,
    Count,
    Generation,
    LeaseSeconds,
    MeasurementSeconds,
    TcpPort,
    UnixSeconds,
)
from placewire.agent.contract.state import (
    Change,
    DesiredState,
    DriftState,
    LeaseState,
    ObservedState,
    Refusal,
)
from placewire.frozen import Frozen

PROTOCOL_VERSION = 5
POLL_SECONDS = 10.0


class Hello(Frozen):
    """instance: different at each start of an agent. management: the server's IPv4 address on the
    way to the controller; None: there is none now. management_interfaces: those by which packets
    leave for the controller; None: they are not known now, and any NIC may be one. protected:
    interfaces that must not be touched."""

    version: Count = PROTOCOL_VERSION
    server: str
    agent_pid: Count
    instance: str = ""
    capabilities: Capabilities
    lease: LeaseState
    management: str | None = None
    management_interfaces: tuple[str, ...] | None = ()
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
    """Tell what staging `desired` would change or refuse; touches nothing. -> Previewed"""

    request: Literal["preview"] = "preview"
    desired: DesiredState


class Previewed(Frozen):
    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]
    lease: LeaseState


class Stage(Frozen):
    """Apply `desired` under a lease; on failure bring the baseline back. -> ApplyReport"""

    request: Literal["stage"] = "stage"
    desired: DesiredState
    lease_seconds: LeaseSeconds


class Renew(Frozen):
    """Extend a staged or committed lease. -> LeaseState"""

    request: Literal["renew"] = "renew"
    generation: Generation
    lease_seconds: LeaseSeconds


class Commit(Frozen):
    """Commit the generation in force; lease_seconds None: without expiry. -> LeaseState"""

    request: Literal["commit"] = "commit"
    generation: Generation
    lease_seconds: LeaseSeconds | None


class Restore(Frozen):
    """End the lease now and bring its baseline back. -> ApplyReport"""

    request: Literal["restore"] = "restore"
    generation: Generation


class Destroy(Frozen):
    """Remove all that this plan made, and put back what was there before it. Refused where another
    plan's state is in force. -> ApplyReport"""

    request: Literal["destroy"] = "destroy"
    plan_name: str


class ReadBack(Frozen):
    """Read the network back, and compare it with the state in force. -> ReadBackResult"""

    request: Literal["read_back"] = "read_back"
    generation: Generation


class ReadBackResult(Frozen):
    """deviations and problems: as just read back. drift: what the agent has seen up to now."""

    deviations: tuple[Change, ...]
    problems: tuple[str, ...]
    drift: DriftState | None = None


class StartServers(Frozen):
    """Listen for these transfers, whose destination is this server. -> Listening"""

    request: Literal["start_servers"] = "start_servers"
    transfers: tuple[Transfer, ...]
    seconds: MeasurementSeconds


class Listening(Frozen):
    """clock_unix: the agent's clock as it answers; the controller gives start times by it."""

    tcp_ports: tuple[TcpPort, ...]
    clock_unix: ClockUnixSeconds = 0.0


class RunTransfers(Frozen):
    """Send all these transfers at once, from this server. -> TransferResults

    start_unix: when to begin, by this agent's clock, so that the transfers of all servers overlap.
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
    """Ask by ARP for these addresses on the wire of each bridge in `interfaces`. -> Neighbours"""

    request: Literal["find_neighbours"] = "find_neighbours"
    interfaces: tuple[str, ...] = Field(max_length=64)
    addresses: tuple[str, ...] = Field(max_length=512)


class Neighbours(Frozen):
    found: tuple[Neighbour, ...]


class Diagnose(Frozen):
    """Look for problems on this server; changes nothing. -> Diagnosis"""

    request: Literal["diagnose"] = "diagnose"


Request = Annotated[
    Observe | Preview | Stage | Renew | Commit | Restore | Destroy | ReadBack | StartServers
    | RunTransfers | StopServers | ReadCounters | FindNeighbours | Diagnose,
    Field(discriminator="request"),
]  # fmt: skip


class Envelope(Frozen):
    id: str
    body: Request


class Envelopes(Frozen):
    envelopes: tuple[Envelope, ...]


class Reply(Frozen):
    """result: what the request asks for, as JSON. refusal: why the request was not done."""

    session: str
    id: str
    result: dict[str, Any] | None = None
    refusal: Refusal | None = None
