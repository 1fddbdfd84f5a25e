"""A NIC that comes back while a state is made is not taken before what it holds is written down.

The keeper runs on the network in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.agent.contract.state import ForeignEntry, ObservedState
from placewire.agent.reconcile.drift import find_drift
from placewire.agent.reconcile.ledger import extended
from placewire.agent.reconcile.unmarkable import Unmarked, unmarked
from tests.agent.faults import Fault, NoFaults, Place
from tests.agent.memory_agent import MemoryAgent
from tests.agent.memory_server import MemoryServer, sysctls_of
from tests.agent.states import desired_state

LONGEST_RETRY_SECONDS = 301.0


class ComesBack(NoFaults):
    """NIC nic1 comes back, and the effect fails that is asked for at that moment."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__()
        self.server, self.came = server, False

    def at(self, place: Place, what: str) -> Fault | None:
        if place is not Place.EFFECT or self.came:
            return None
        self.came = True
        self.server.nic_comes_back("nic1")
        self.server.configure("nic1")
        return Fault.CALL_FAILS


def of_nic1(server: MemoryServer) -> dict[str, str]:
    return {name: server.sysctls[name] for name in sysctls_of("nic1")}


@pytest.fixture
def agent(tmp_path: Path) -> MemoryAgent:
    """State 2, on nic0 alone, is in force for a while, and then state 1 on both NICs."""
    made = MemoryAgent(tmp_path)
    assert made.keeper.stage(desired_state(1), 30).succeeded
    made.keeper.commit(1, None)
    assert made.keeper.stage(desired_state(2, nics=("nic0",)), 30).succeeded
    made.keeper.commit(2, 60.0)
    return made


def test_all_is_as_before_in_the_end(agent: MemoryAgent) -> None:
    server = agent.server
    server.nic_vanishes("nic1")
    agent.network._striker = striker = ComesBack(server)
    agent.wait(61)
    assert striker.came
    agent.network._striker = NoFaults()
    for _ in range(3):
        agent.keeper.notice()
        agent.wait(LONGEST_RETRY_SECONDS)
    assert agent.keeper.lease.is_kept and agent.keeper.read_back(1).deviations == ()
    assert agent.keeper.destroy(desired_state(1).plan_name).succeeded
    is_as_before(agent)


def is_as_before(agent: MemoryAgent) -> None:
    server, before = agent.server, MemoryServer()
    assert of_nic1(server) == of_nic1(before)
    assert server.links["nic1"].address_commands == before.links["nic1"].address_commands
    assert agent.network.harmed == []


def test_a_nic_that_went_away_while_it_was_read_is_not_taken(tmp_path: Path) -> None:
    """Its facts were read before, and its sysctls after that."""
    agent = MemoryAgent(tmp_path)
    observe = agent.network.observe

    def torn(sought: Unmarked) -> ObservedState:
        agent.network.observe = observe  # type: ignore[method-assign]
        whole = observe(sought)
        left = tuple(s for s in whole.sysctls if s.interface != "nic1")
        return whole.model_copy(update={"sysctls": left})

    agent.network.observe = torn  # type: ignore[method-assign]
    done = agent.keeper.stage(desired_state(1), 30)
    assert not done.succeeded
    assert "what NIC nic1 held before is not written down yet" in done.refusals[0].sentence
    assert not agent.server.bridges
    is_as_before(agent)
    assert agent.keeper.stage(desired_state(1).model_copy(update={"generation": 2}), 30).succeeded


def test_what_the_ledger_does_not_have_is_not_taken(agent: MemoryAgent) -> None:
    wanted, ledger = desired_state(1), agent.keeper._context.memory.kept.ledger
    observed = agent.network.observe(unmarked(wanted, ledger))
    drift = find_drift(wanted, observed, ledger)
    sentence = "what NIC nic1 held before is not written down yet"
    assert sentence in [fault.sentence for fault in drift.faults]
    assert not [step for step in drift.steps if "nic1" in str(step.as_change())]
    known = find_drift(wanted, observed, extended(wanted, observed, ledger))
    assert sentence not in [fault.sentence for fault in known.faults]
    assert [step for step in known.steps if "nic1" in str(step.as_change())]


def test_an_undo_that_would_harm_others_on_such_a_nic_is_refused_and_touches_nothing(
    agent: MemoryAgent,
) -> None:
    """Nic1 was given back, so that the ledger lacks it; a state that takes it comes back."""
    observe = agent.network.observe

    def with_theirs(sought: Unmarked) -> ObservedState:
        whole = observe(sought)
        theirs = ForeignEntry(
            collection="receiving disciplines", key="nic1", text="an ingress filter", on="",
            remedy="tc qdisc del dev nic1 ingress",
        )  # fmt: skip
        return whole.model_copy(update={"foreign": (*whole.foreign, theirs)})

    agent.network.observe = with_theirs  # type: ignore[method-assign]
    refused = agent.keeper.restore(2)
    assert not refused.succeeded
    assert any("an ingress filter" in refusal.sentence for refusal in refused.refusals)
    assert (agent.keeper.lease.phase, agent.keeper.lease.generation) == ("committed", 2)
