"""A message that arrives, or a clock that is set, while the agent reads its server or undoes; and
messages that arrive late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from placewire.agent.contract.state import ObservedState
from placewire.agent.reconcile.effects import UnreadableError
from placewire.agent.reconcile.lease import LeaseRefusedError
from placewire.agent.reconcile.unmarkable import Unmarked
from tests.agent.memory_agent import MemoryAgent
from tests.agent.states import desired_state


@pytest.fixture
def agent(tmp_path: Path) -> MemoryAgent:
    return MemoryAgent(tmp_path)


def at_the_next_reading(agent: MemoryAgent, act: Callable[[], object]) -> None:
    observe = agent.network.observe

    def observe_after(sought: Unmarked) -> ObservedState:
        agent.network.observe = observe  # type: ignore[method-assign]
        act()
        return observe(sought)

    agent.network.observe = observe_after  # type: ignore[method-assign]


def test_a_destroy_of_another_plan_that_comes_while_a_stage_reads_is_refused(
    agent: MemoryAgent,
) -> None:
    asked, refused = threading.Event(), threading.Event()

    def destroy() -> None:
        asked.set()
        try:
            agent.keeper.destroy("another-plan")
        except LeaseRefusedError:
            refused.set()

    meanwhile = threading.Thread(target=destroy)

    def begin() -> None:
        meanwhile.start()
        asked.wait()
        # It waits for the stage to end, or else it has been through by then.
        meanwhile.join(0.5)

    at_the_next_reading(agent, begin)
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    meanwhile.join()
    assert refused.is_set() and agent.keeper.lease.phase == "staged"
    assert agent.server.bridges


def test_a_clock_that_is_set_while_a_restore_reads_changes_no_lease(agent: MemoryAgent) -> None:
    keeper = agent.keeper
    assert keeper.stage(desired_state(1), 30).succeeded
    keeper.commit(1, 600.0)
    assert keeper.stage(desired_state(2, rates=(5_000_000, 5_000_000)), 30).succeeded

    def set_back() -> None:
        agent.unix -= 30 * 86_400.0
        keeper.seconds_until_due()

    at_the_next_reading(agent, set_back)
    assert keeper.restore(2).succeeded
    lease = keeper.lease
    assert lease.generation == 1 and lease.expires_unix is not None
    assert lease.expires_unix - agent.unix == pytest.approx(600.0)


def test_a_generation_that_was_given_up_while_an_undo_is_stuck_does_not_come_later(
    agent: MemoryAgent,
) -> None:
    keeper, observe = agent.keeper, agent.network.observe
    assert keeper.stage(desired_state(1), 5).succeeded

    def unreadable(sought: Unmarked) -> ObservedState:
        raise UnreadableError("the database does not answer")

    agent.network.observe = unreadable  # type: ignore[method-assign]
    agent.wait(6)
    assert keeper.lease.phase == "failed"
    assert not keeper.restore(2).succeeded and keeper.lease.highest_generation == 2
    agent.network.observe = observe  # type: ignore[method-assign]
    agent.wait(301)
    assert keeper.lease.is_idle
    late = keeper.stage(desired_state(2), 30)
    assert "generation 2 is not above 2" in late.refusals[0].what and not agent.server.bridges


@pytest.mark.parametrize("lease_seconds", [None, 5.0], ids=["staged", "committed for a time"])
def test_a_stage_that_comes_twice_revives_no_lease_that_ran_out(
    agent: MemoryAgent, lease_seconds: float | None
) -> None:
    keeper = agent.keeper
    assert keeper.stage(desired_state(1), 5).succeeded
    if lease_seconds is not None:
        keeper.commit(1, lease_seconds)
    agent.boot_seconds += 6
    agent.unix += 6
    for refusals in (keeper.preview(desired_state(1)).refusals,
                     keeper.stage(desired_state(1), 30).refusals):  # fmt: skip
        assert "the lease of generation 1 has run out" in refusals[0].what
    agent.keeper.tick()
    assert keeper.lease.is_idle and not agent.server.bridges


def test_a_lease_that_runs_out_while_its_state_is_staged_again_ends(agent: MemoryAgent) -> None:
    keeper = agent.keeper
    assert keeper.stage(desired_state(1), 5).succeeded

    def time_passes() -> None:
        agent.boot_seconds += 6
        agent.unix += 6

    at_the_next_reading(agent, time_passes)
    (refusal,) = keeper.stage(desired_state(1), 30).refusals
    assert refusal.what.startswith("stage: the lease of generation 1 has run out")
    assert keeper.lease.is_idle and not agent.server.bridges
