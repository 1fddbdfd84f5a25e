"""What an agent does about drift: when it looks, what it puts back, and when it leaves a fight
alone."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.state import (
    Collections,
    ForeignEntry,
    Ledger,
    NicFacts,
    ObservedState,
    TakenOver,
)
from placewire.agent.reconcile.contest import FORGOTTEN_SECONDS, MOST_HEALS, Contests
from placewire.agent.reconcile.diff import difference
from placewire.agent.reconcile.drift import switch_is_away
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.ledger import marked_as_held
from placewire.agent.reconcile.next_look import (
    LEAST_PAUSE_SECONDS,
    LONGEST_SETTLING_SECONDS,
    PAUSES_WITHOUT_EVENT,
    PERIOD_SECONDS,
    SETTLE_SECONDS,
    NextLook,
)
from placewire.agent.reconcile.steps import NicStep
from tests.agent.states import desired_state
from tests.agent.world import World, in_force, plan, tick

# -- when to look --------------------------------------------------------------------------------


def test_without_events_it_looks_once_a_period() -> None:
    schedule = NextLook(looked_at=100.0)
    assert schedule.due_at == 100 + PERIOD_SECONDS
    assert schedule.looked(160.0, 160.05).due_at == pytest.approx(160.05 + PERIOD_SECONDS)


def test_what_takes_long_is_done_rarely() -> None:
    slow = NextLook(looked_at=0.0).looked(100.0, 100.9, read_seconds=0.8)
    assert slow.due_at == pytest.approx(100.9 + 800)
    pauses = []
    for _ in range(6):
        event = slow.looked_at + 0.1
        pauses.append(slow.noticed(event).due_at - slow.looked_at)
        slow = slow.noticed(event).looked(event + 9, event + 10, read_seconds=0.8)
    assert pauses == pytest.approx([1.6, 3.2, 6.4, 12.8, 16, 16]), "looks in vain: less often"
    found = slow.noticed(2e3).looked(2e3, 2e3, read_seconds=0.8, found=True)
    assert found.noticed(2001.0).due_at == pytest.approx(2001.6)


def test_a_burst_of_events_is_one_look() -> None:
    schedule = NextLook(looked_at=0.0)
    for tenth in range(5):
        schedule = schedule.noticed(50 + tenth / 10)
        assert schedule.due_at == pytest.approx(50 + tenth / 10 + SETTLE_SECONDS)
    assert schedule.looked(50.65, 50.7).due_at == pytest.approx(50.7 + PERIOD_SECONDS)


def test_events_without_end_neither_put_a_look_off_nor_cause_many() -> None:
    schedule, looks, now = NextLook(looked_at=0.0), [], 10.0
    while now < 40:
        now += 0.01
        schedule = schedule.noticed(now)
        if now >= schedule.due_at:
            looks.append(now)
            schedule = schedule.looked(now, now)
    assert looks[0] <= 10.01 + LONGEST_SETTLING_SECONDS + 0.011
    pauses = [after - before for before, after in pairwise(looks)]
    assert min(pauses) >= LEAST_PAUSE_SECONDS and max(pauses) <= LONGEST_SETTLING_SECONDS + 0.02


def test_what_happens_during_a_look_is_looked_at_again() -> None:
    during = NextLook(looked_at=0.0).noticed(70.0).noticed(71.2).looked(71.0, 71.5, found=True)
    assert during.due_at == pytest.approx(71.5 + LEAST_PAUSE_SECONDS)
    rested = NextLook(looked_at=0.0).noticed(70.0).rested(70.1, read_seconds=0.0)
    assert rested.due_at == 70.1 + LEAST_PAUSE_SECONDS


def test_the_first_look_after_a_change_is_as_far_off_as_reading_is_slow() -> None:
    """With 256 queues, reading takes most of a second: once a minute would be 1 % of a core."""
    quick, slow = (NextLook(looked_at=0.0).rested(10.0, read_seconds=s) for s in (0.01, 0.8))
    assert quick.due_at == pytest.approx(10.0 + PERIOD_SECONDS)
    assert slow.due_at == pytest.approx(10.0 + 0.8 * PAUSES_WITHOUT_EVENT)


# -- who fights ----------------------------------------------------------------------------------


def test_pauses_grow_and_end_in_leaving_it() -> None:
    contests, now, pauses = Contests(), 0.0, []
    for _ in range(MOST_HEALS):
        now += contests.left_alone({"a"}, now).get("a", 0.0)
        contests = contests.healed({"a"}, now)
        pauses.append(contests.left_alone({"a", "b"}, now))
    assert pauses == [{"a": p} for p in (5.0, 10.0, 20.0, 40.0, 80.0, FORGOTTEN_SECONDS)]
    assert contests.is_given_up("a") and not contests.is_given_up("b")
    later = contests.healed({"a"}, now + FORGOTTEN_SECONDS)
    assert not later.is_given_up("a") and later.left_alone({"a"}, now + FORGOTTEN_SECONDS)


# -- the keeper ----------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


RULE = ("rules", "18000 from 10.7.0.1/32")
FLOW = ("flows", "pw-nic0 to 10.7.0.2")


def removed(world: World, *places: tuple[str, str]) -> None:
    for place in places:
        del world.network.entries[place]


def audited(world: World, event: str) -> list[Any]:
    lines = (world.directory / "audit.jsonl").read_text().splitlines()
    return [record for line in lines if (record := json.loads(line))["event"] == event]


def test_what_others_removed_is_put_back_and_nothing_else_touched(world: World) -> None:
    keeper = in_force(world)
    whole = world.network.state
    removed(world, RULE, FLOW)
    world.now += 10
    keeper.notice()
    assert tick(world, keeper, SETTLE_SECONDS / 2) is None, "events settle first"
    report = tick(world, keeper, SETTLE_SECONDS)
    assert report.succeeded and world.network.touched == 2
    assert {change.key for change in report.changes} == {RULE[1], FLOW[1]}
    assert world.network.state == whole
    drift = keeper.drift
    assert (drift.drifts, drift.heals, drift.since_unix) == (1, 1, None)
    assert {record["change"]["key"] for record in audited(world, "heal")} == {RULE[1], FLOW[1]}


def test_what_no_event_told_is_found_all_the_same(world: World) -> None:
    keeper = in_force(world)
    world.network.sysctls["net.ipv4.conf.nic0.rp_filter"] = "1"
    assert tick(world, keeper, PERIOD_SECONDS - 1) is None
    assert tick(world, keeper, 1).succeeded
    assert world.network.sysctls["net.ipv4.conf.nic0.rp_filter"] == "2"


def test_a_staged_state_is_watched_and_an_idle_server_is_not(world: World) -> None:
    keeper = world.keeper()
    assert keeper.seconds_until_due() is None
    keeper.stage(plan(1), 600)
    removed(world, RULE)
    keeper.notice()
    assert tick(world, keeper, 1).changes
    world.now = keeper.lease.expires_unix or 0.0
    keeper.notice()
    assert tick(world, keeper).succeeded and keeper.lease.phase == "idle"
    assert keeper.seconds_until_due() is None


def test_where_it_is_only_reported_nothing_is_touched(world: World) -> None:
    keeper = in_force(world, "report")
    removed(world, RULE)
    for _ in range(3):
        report = tick(world, keeper, PERIOD_SECONDS)
        assert not report.succeeded and "add rules 18000" in report.refusals[0].what
    assert world.network.touched == 0 and RULE not in world.network.entries
    found = keeper.read_back(1)
    assert [change.key for change in found.deviations] == [RULE[1]]
    assert found.drift is not None and found.drift.policy == "report"
    assert (found.drift.drifts, found.drift.heals) == (1, 0)
    assert found.drift.since_unix is not None and "drift: report" in found.drift.notes[0]
    assert len(audited(world, "drift")) == 1, "told once while it stays the same"
    removed(world, FLOW)
    tick(world, keeper, PERIOD_SECONDS)
    assert keeper.drift.drifts == 2 and len(audited(world, "drift")) == 3
    world.network.entries[RULE], world.network.entries[FLOW] = plan(1).rules[0], plan(1).flows[0]
    assert tick(world, keeper, PERIOD_SECONDS).succeeded and keeper.drift.since_unix is None


def test_who_fights_is_left_alone_in_the_end(world: World) -> None:
    keeper = in_force(world)
    healed_at = []
    for _ in range(int(3 * FORGOTTEN_SECONDS)):
        if RULE in world.network.entries:
            removed(world, RULE)
            keeper.notice()
        if tick(world, keeper, 0.5) and RULE in world.network.entries:
            healed_at.append(world.now)
        if world.now > 1000 + FORGOTTEN_SECONDS:
            break
    assert len(healed_at) == MOST_HEALS
    pauses = [after - before for before, after in pairwise(healed_at)]
    assert all(later > former for former, later in pairwise(pauses))
    assert "changed again and again" in keeper.drift.notes[0] and RULE[1] in keeper.drift.notes[0]
    removed(world, FLOW)
    keeper.notice()
    assert tick(world, keeper, 5).changes[0].key == FLOW[1], "of the rest it still takes care"
    assert RULE not in world.network.entries
    keeper.notice(switch_restarted=True)
    assert tick(world, keeper, 5).succeeded and RULE in world.network.entries


def test_a_new_decision_ends_the_fight(world: World) -> None:
    keeper = in_force(world)
    for _ in range(MOST_HEALS):
        removed(world, RULE)
        keeper.notice()
        while RULE not in world.network.entries:
            tick(world, keeper, 1)
    keeper.stage(plan(2), 60)
    keeper.commit(2, None)
    removed(world, RULE)
    keeper.notice()
    assert tick(world, keeper, 2).succeeded and RULE in world.network.entries


@pytest.mark.parametrize(
    "place, foreign",
    [
        (FLOW, ForeignEntry(collection="flows", key=FLOW[1], text="their flow")),
        (RULE, ForeignEntry(collection="rules", key="18000", text="their rule")),
        (
            ("routes", "table 8000 10.7.0.0/24"),
            ForeignEntry(collection="routes", key="table 8000 10.7.0.0/24", text="their route"),
        ),
        (
            ("classifiers", "nic0 10.7.0.2"),
            ForeignEntry(collection="classifiers", key="nic0", text="their filter"),
        ),
    ],
)
def test_what_is_not_ours_and_in_the_place_of_ours_is_named_and_left(
    world: World, place: tuple[str, str], foreign: ForeignEntry
) -> None:
    keeper = in_force(world)
    other = ("addresses", "pw-nic0 10.7.0.1/24")
    removed(world, place, other)
    world.network.foreign = (foreign,)
    keeper.notice()
    report = tick(world, keeper, 5)
    assert [change.key for change in report.changes] == [other[1]], "the rest is put back"
    assert not report.succeeded and foreign.text in report.refusals[0].what
    assert foreign.text in keeper.drift.notes[0] and keeper.drift.heals == 1
    assert place not in world.network.entries
    world.network.foreign = ()
    keeper.notice()
    assert tick(world, keeper, 5).succeeded and place in world.network.entries
    assert keeper.drift.notes == ()


def test_a_heal_that_fails_is_tried_less_and_less_often(world: World) -> None:
    keeper = in_force(world)
    tried = []

    def failing(*_: object) -> None:
        tried.append(world.now)
        raise EffectError("no such device")

    working = world.network.apply
    world.network.apply = failing  # type: ignore[assignment, method-assign]
    removed(world, RULE)
    for _ in range(200):
        keeper.notice()
        tick(world, keeper, 1)
    rounds = dict.fromkeys(tried)  # In each, all at once and then NIC by NIC.
    assert [round(b - a) for a, b in pairwise(rounds)] == [5, 10, 20, 40, 80]
    assert keeper.drift.notes == ("no such device",) and keeper.lease.phase == "committed"
    assert len(audited(world, "failed")) == 1
    world.network.apply = working  # type: ignore[method-assign]
    removed(world, FLOW)
    keeper.notice()
    assert tick(world, keeper, 2).succeeded, "something else: tried at once"


def test_what_cannot_be_read_is_looked_at_soon_again(world: World) -> None:
    keeper = in_force(world)
    world.network.unreadable = True
    keeper.notice()
    report = tick(world, keeper, 5)
    assert "does not answer" in report.refusals[0].what and keeper.lease.phase == "committed"
    world.network.unreadable = False
    removed(world, RULE)
    assert tick(world, keeper, 5).succeeded and RULE in world.network.entries


def test_nothing_is_tried_while_the_switch_is_away() -> None:
    desired = desired_state()
    gone = tuple(bridge.model_copy(update={"mtu_bytes": 0}) for bridge in desired.bridges)
    assert switch_is_away(desired, ObservedState(bridges=gone))
    assert not switch_is_away(desired, ObservedState(bridges=(gone[0], desired.bridges[1])))
    assert not switch_is_away(desired, ObservedState())


def test_what_others_put_on_a_nic_since_is_theirs() -> None:
    def nic(*addresses: str) -> NicFacts:
        return NicFacts(
            name="nic0", mac="", mtu_bytes=1500, up=True, speed_bits_per_second=None, driver=None,
            rdma=False, bridge="pw-nic0", addresses=addresses, address_commands=addresses,
            routes=("10.60.0.0/16 dev nic0",),
        )  # fmt: skip

    bare: dict[str, Any] = dict.fromkeys(("shapers", "queues", "flows", "classifiers"), ())
    desired = desired_state(nics=("nic0",), **bare)
    parts = {name: getattr(desired, name) for name in Collections.model_fields}
    ledger = Ledger(nics=(TakenOver(nic="nic0", addresses=("10.7.0.1/24 scope 0",)),))
    mark = marked_as_held(desired.bridges[0], desired, ledger)
    assert mark is not None
    theirs = ObservedState(**parts, nics=(nic("10.99.0.1/24"),), held=(mark,))
    assert difference(desired, theirs, ledger) == ()
    back = theirs.model_copy(update={"nics": (nic("10.7.0.1/24", "10.99.0.1/24"),)})
    (step,) = difference(desired, back, ledger)
    assert isinstance(step, NicStep)
    assert (step.held.addresses, step.held.routes) == (("10.7.0.1/24",), ())
