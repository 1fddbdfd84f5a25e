"""A server speaks for itself alone: what it tells of others is refused, with its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from placewire.agent.contract.measurement import LinkMeasurement, Neighbour, TransferResult
from placewire.agent.contract.messages import (
    Listening,
    Neighbours,
    RunTransfers,
    StopServers,
    TransferResults,
)
from placewire.controller.compile.transfers import promises
from placewire.controller.errors import AgentProblem
from placewire.controller.verify.bandwidth_check import measure
from placewire.controller.verify.wiring import require_as_wired
from tests.controller.plans import placement, plan, plan_document

SENT = (("s1", "s3", "b", 20e6), ("s2", "s3", "b", 10e6))


def result(source: str, destination: str = "s3", rate: float = 1e6) -> TransferResult:
    return TransferResult(
        source=source, destination=destination, rail="b", measured_bits_per_second=rate,
        retransmits=0, seconds=2, start_unix=1000.0, end_unix=1003.0,
    )  # fmt: skip


class Measured:
    """s1 answers with these results; the others with what they were asked for."""

    def __init__(self, *of_s1: TransferResult) -> None:
        self.of_s1, self.stopped = of_s1, 0

    async def ask(self, server: str, request: Any, kind: type, timeout_seconds: float) -> Any:
        return Listening(tcp_ports=(), clock_unix=1000.0)

    async def ask_all(
        self, requests: Mapping[str, Any], kind: type, timeout_seconds: float
    ) -> dict[str, Any]:
        self.stopped += any(isinstance(one, StopServers) for one in requests.values())
        return {
            server: TransferResults(
                results=self.of_s1
                if server == "s1"
                else tuple(result(t.source, t.destination, 10e6) for t in request.transfers)
            )
            for server, request in requests.items()
            if isinstance(request, RunTransfers)
        }


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ((result("s1"), result("s2")), "s2 s3 b"),
        ((result("s1"), result("s9")), "s9 s3 b"),
        ((result("s1", "s2"),), "s1 s2 b"),
        ((result("s1"), result("s1", rate=20e6)), "s1 s3 b"),
    ],
    ids=["of another server", "of a server in no plan", "of another pair", "twice"],
)
async def test_a_server_tells_no_rate_but_its_own(
    told: tuple[TransferResult, ...], said: str
) -> None:
    of, agents = plan(), Measured(*told)
    with pytest.raises(AgentProblem, match=f"a measurement of {said}, for which") as refused:
        await measure(agents, of, promises(of, placement(of, SENT)))  # type: ignore[arg-type]
    assert refused.value.where == "s1" and "authority deny s1" in refused.value.remedy
    assert agents.stopped


async def test_what_a_server_was_asked_for_is_taken() -> None:
    of, agents = plan(), Measured(result("s1", rate=20e6))
    links = await measure(agents, of, promises(of, placement(of, SENT)))  # type: ignore[arg-type]
    assert [(link.source, link.measured_bits_per_second) for link in links] == [
        ("s1", 20e6), ("s2", 10e6),
    ]  # fmt: skip


class Heard:
    """s1 says that this answers on its wire; the others hear nobody."""

    def __init__(self, neighbour: Neighbour) -> None:
        self.neighbour = neighbour

    async def ask_all(self, requests: Mapping[str, Any], kind: type, seconds: float) -> Any:
        return {s: Neighbours(found=(self.neighbour,) if s == "s1" else ()) for s in requests}


@pytest.mark.parametrize(
    ("interface", "address"), [("pw-nic9", "10.7.0.2"), ("pw-nic0", "10.7.0.1")]
)
async def test_a_server_hears_nobody_but_those_that_it_was_asked_for(
    interface: str, address: str
) -> None:
    """s1 was asked for others on its own bridges; 10.7.0.1 is its own."""
    link = LinkMeasurement(
        source="s1", destination="s2", rail="a", nic="nic0", queue_id=2,
        promised_bits_per_second=1e6, at_most_bits_per_second=1e6, wire_bits_per_second=1e6,
        measured_bits_per_second=0.0, within_tolerance=False,
    )  # fmt: skip
    heard = Heard(Neighbour(interface=interface, address=address))
    with pytest.raises(AgentProblem, match=f"neighbours {interface} {address}") as refused:
        await require_as_wired(heard, plan(plan_document(3)), [link])  # type: ignore[arg-type]
    assert refused.value.where == "s1"
