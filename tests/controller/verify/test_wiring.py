"""Cables in wrong switches are found by who answers on whose wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from placewire.agent.contract.measurement import LinkMeasurement, Neighbour
from placewire.agent.contract.messages import FindNeighbours, Neighbours
from placewire.controller.errors import AgentUnreachable, VerificationFailed
from placewire.controller.verify.wiring import Nic, nics_of, require_as_wired, verdict
from tests.controller.plans import plan, plan_document

Switch = Mapping[str, str]
"""By "SERVER NIC": the rail of the switch that it is plugged into; nothing: into none."""


def plugged(servers: int, **elsewhere: str) -> Switch:
    """elsewhere: the rail that a NIC (like s3_nic0) is really on."""
    found = {f"s{k} nic{r}": rail for k in range(1, servers + 1) for r, rail in enumerate("ab")}
    return found | {name.replace("_", " "): rail for name, rail in elsewhere.items()}


class Cabled:
    """Agents whose NICs hear all NICs in the same switch."""

    def __init__(self, servers: int, switch: Switch, *, silent: str = "") -> None:
        self.plan = plan(plan_document(servers))
        self.switch, self.silent = switch, silent
        self.asked: dict[str, FindNeighbours] = {}

    async def ask_all(self, requests: Mapping[str, Any], kind: type, seconds: float) -> Any:
        self.asked |= requests
        name_of = {n.ip: f"{s.name} {n.name}" for s in self.plan.cluster.servers for n in s.nics}
        answers = {
            server: Neighbours(
                found=tuple(
                    Neighbour(interface=interface, address=address)
                    for interface in request.interfaces
                    for address in request.addresses
                    if self.switch[f"{server} {interface.removeprefix('pw-')}"]
                    == self.switch[name_of[address]]
                    != ""
                )
            )
            for server, request in requests.items()
            if server != self.silent
        }
        if self.silent in requests:
            raise AgentUnreachable([self.silent], answered=answers)
        return answers

    def links(self, *, through: float = 0.0) -> tuple[LinkMeasurement, ...]:
        """A pair on different wires measures 0."""
        names = [server.name for server in self.plan.cluster.servers]
        return tuple(
            LinkMeasurement(
                source=a, destination=b, rail=rail, nic=f"nic{r}", queue_id=2,
                promised_bits_per_second=1e6, at_most_bits_per_second=1e6,
                wire_bits_per_second=1e6, within_tolerance=False,
                measured_bits_per_second=through
                if self.switch[f"{a} nic{r}"] != self.switch[f"{b} nic{r}"]
                else 1e6,
            )
            for a in names for b in names if a != b for r, rail in enumerate("ab")
        )  # fmt: skip


async def told(cabled: Cabled) -> VerificationFailed:
    with pytest.raises(VerificationFailed) as failed:
        await require_as_wired(cabled, cabled.plan, cabled.links())  # type: ignore[arg-type]
    assert failed.value.exit_code == 6 and failed.value.links
    return failed.value


CROSSED = {"s3_nic0": "b", "s3_nic1": "a"}


async def test_two_nics_of_a_server_on_each_other_s_rails_are_one_mistake() -> None:
    error = await told(Cabled(4, plugged(4, **CROSSED)))
    assert error.what == (
        "s3 nic0 and nic1 are wired crosswise: nic0 (rail a) is on rail b, nic1 (rail b) on rail a"
    )
    assert error.where == "s3 nic0, s3 nic1" and "into its rail's switch" in error.remedy


async def test_one_nic_in_the_wrong_switch() -> None:
    error = await told(Cabled(3, plugged(3, s2_nic1="a")))
    assert error.what == "s2 nic1 (rail b) is on rail a" and error.where == "s2 nic1"


async def test_between_two_servers_nobody_can_say_whose_cables_they_are() -> None:
    error = await told(Cabled(2, plugged(2, s2_nic0="b", s2_nic1="a")))
    assert "on one of these servers or the other" in error.what
    assert "s1 nic0 (rail a), s2 nic1 (rail b)" in error.what
    assert set(error.where.split(", ")) == {"s1 nic0", "s1 nic1", "s2 nic0", "s2 nic1"}


@pytest.mark.parametrize(
    "elsewhere",
    [{}, {"s3_nic0": ""}, {f"s{k}_nic{r}": "a" for k in (1, 2, 3) for r in (0, 1)}],
    ids=["as planned", "unplugged", "both rails in one switch"],
)
async def test_what_is_no_wrong_switch(elsewhere: dict[str, str]) -> None:
    cabled = Cabled(3, plugged(3, **elsewhere))
    await require_as_wired(cabled, cabled.plan, cabled.links())  # type: ignore[arg-type]


async def test_nobody_is_asked_where_something_came_through() -> None:
    cabled = Cabled(3, plugged(3, **CROSSED))
    await require_as_wired(cabled, cabled.plan, cabled.links(through=1e3))  # type: ignore[arg-type]
    assert not cabled.asked


async def test_of_many_servers_some_are_asked_for_and_an_agent_may_be_silent() -> None:
    cabled = Cabled(40, plugged(40, s7_nic0="b", s7_nic1="a"), silent="s30")
    error = await told(cabled)
    assert error.where == "s7 nic0, s7 nic1"
    assert {len(request.addresses) for request in cabled.asked.values()} == {16}


def test_a_nic_that_nobody_asked_may_still_be_heard() -> None:
    nics = nics_of(plan(plan_document(3)))
    by_name = {f"{nic.server} {nic.name}": nic for nic in nics}

    def one(name: str) -> Nic:
        return by_name[name]

    heard = {
        one("s1 nic0"): {one("s2 nic0"), one("s3 nic1")},
        one("s2 nic1"): {one("s1 nic1"), one("s3 nic0")},
    }
    found = verdict(nics, heard)
    assert found is not None and set(found.nics) == {one("s3 nic0"), one("s3 nic1")}
