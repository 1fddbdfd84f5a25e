"""What an agent does about a NIC of its own that ovs-vswitchd does not have open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.state import ForeignEntry, ObservedState, UnopenedNic
from placewire.agent.keep.healing import OPENS_BY_ITSELF_SECONDS
from placewire.agent.keep.keeper import READ_BACK_SECONDS
from placewire.agent.reconcile.steps import EntryStep
from tests.agent.world import FakeNetwork, World, in_force, plan, tick

UNOPENED = (UnopenedNic(nic="nic0", why="No such device"),)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_nic_that_stays_unopened_is_opened_anew_with_its_queues(world: World) -> None:
    keeper = in_force(world)
    world.network.unopened = UNOPENED
    keeper.notice()
    report = tick(world, keeper, 1)
    assert not report.changes and "NIC nic0 open" in keeper.drift.notes[0]
    report = tick(world, keeper, OPENS_BY_ITSELF_SECONDS)
    assert {("bridges", "pw-nic0"), ("shapers", "nic0"), ("queues", "nic0 queue 2")} <= {
        (change.collection, change.key) for change in report.changes
    }
    assert not world.network.unopened and not keeper.drift.notes


def test_a_switch_that_starts_opens_its_nics_by_itself(world: World) -> None:
    keeper = in_force(world)
    for _ in range(2):  # Two starts long after each other are no reason, either.
        world.network.unopened = UNOPENED
        keeper.notice()
        tick(world, keeper, 1)
        world.network.unopened = ()
        keeper.notice()
        tick(world, keeper, OPENS_BY_ITSELF_SECONDS)
        world.now += 100
    assert world.network.touched == 0


FILTER = ForeignEntry(collection="filters", key="nic0 5", text="a filter", on="nic0")


def test_a_nic_whose_opening_others_keep_off_is_left_alone_whole(world: World) -> None:
    keeper = in_force(world)
    world.network.unopened, world.network.foreign = UNOPENED, (FILTER,)
    observe = world.network.observe

    def without_classes(sought: Any) -> ObservedState:
        return observe(sought).model_copy(update={"effective_queues": ()})

    world.network.observe = without_classes  # type: ignore[method-assign]
    for _ in range(3):
        keeper.notice()
        report = tick(world, keeper, OPENS_BY_ITSELF_SECONDS)
        assert report is None or not report.changes
        (note,) = keeper.drift.notes
        assert "a filter, which is not ours" in note, "and nothing of its queues"
    assert world.network.touched == 0 and keeper.drift.heals == 0
    # Its queues are still written where they are to change.
    (queue, *_) = plan(1).queues
    slower = queue.model_copy(update={"max_bits_per_second": 5})
    world.network.entries["queues", queue.key] = slower
    keeper.notice()
    tick(world, keeper, OPENS_BY_ITSELF_SECONDS)
    assert world.network.touched == 1


def test_a_switch_that_starts_is_waited_for_beneath_filters_of_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its opening counts though it is held back: else a stage is refused at that moment."""
    keeper = in_force(world)
    keeper._context.read_back_seconds = READ_BACK_SECONDS
    observe = world.network.observe

    def opens_meanwhile(sought: Any) -> ObservedState:
        found = observe(sought)
        world.network.unopened = ()
        return found

    monkeypatch.setattr(world.network, "observe", opens_meanwhile)
    world.network.foreign = (FILTER,)
    for ask in (keeper.preview, lambda desired: keeper.stage(desired, 60)):
        world.network.unopened = UNOPENED
        assert not ask(plan(2)).refusals
    assert world.network.touched == 0


def test_an_agent_that_starts_with_the_switch_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = in_force(world)
    world.network.unopened = UNOPENED
    keeper._context.read_back_seconds = READ_BACK_SECONDS
    observe, looks = world.network.observe, []

    def opens_meanwhile(sought: Any) -> ObservedState:
        found = observe(sought)
        looks.append(found.unopened)
        world.network.unopened = ()
        return found

    monkeypatch.setattr(world.network, "observe", opens_meanwhile)
    report = keeper.resume()
    assert report is not None and report.succeeded and not report.changes
    assert looks[0] == UNOPENED and world.network.touched == 0


def test_a_nic_that_cannot_be_opened_is_told_with_the_reason(world: World) -> None:
    world.network.unopened = UNOPENED
    keeper = world.keeper()
    world.network._apply = lambda step: FakeNetwork._apply(  # type: ignore[method-assign]
        world.network, step if not isinstance(step, EntryStep) else replace(step, unopened="")
    )
    report = keeper.stage(plan(1), 60)
    assert not report.succeeded
    assert "ovs-vswitchd does not have NIC nic0 open (No such device)" in report.refusals[0].what
