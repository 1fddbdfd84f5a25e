"""What others have on our bridges and queues is never changed and never removed, whatever the agent
does: the keeper on the network in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from placewire.agent.contract.state import DesiredState, LeaseState, Refusal
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.next_look import PERIOD_SECONDS
from placewire.agent.reconcile.validate import ServerFacts, WayToController
from placewire.agent.store import DiskStore
from tests.agent.faults import Fault, NoFaults, Place
from tests.agent.foreign_things import IN_OUR_PLACE, THINGS, Thing
from tests.agent.memory_drivers import MemoryNetwork
from tests.agent.memory_server import MANAGEMENT, MemoryServer, base_addresses, base_routes
from tests.agent.states import desired_state

PLAN = "test-plan"
FACTS = ServerFacts("s1", "netdev", (3, 1), frozenset({MANAGEMENT}))
WAY = WayToController(frozenset({"10.9.0.1"}))
ONLY_NIC1 = ("nic1",)
THEIR_ROUTE = "10.99.0.0/16 via 10.7.0.2 dev nic0"
each_thing = pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)


class Meddler(NoFaults):
    """Does something right before the first effect whose name begins so."""

    def __init__(self) -> None:
        super().__init__()
        self.before = ""
        self.does: Callable[[], object] | None = None

    def at(self, place: Place, what: str) -> Fault | None:
        if place is Place.EFFECT and self.does is not None and what.startswith(self.before):
            does, self.does = self.does, None
            does()
        return None


class Agent:
    """A keeper on a server in memory, with a clock that tests turn."""

    def __init__(self, directory: Path) -> None:
        self.server, self.meddler, self.now = MemoryServer(), Meddler(), 1000.0
        self.network = MemoryNetwork(self.server, self.meddler)
        self._directory = directory
        self.keeper = self.started()

    def started(self) -> Keeper:
        store = DiskStore(self._directory)
        return Keeper(
            self.network, store, FACTS, lambda: WAY, lambda: self.now, 0, lambda: self.now
        )  # fmt: skip

    def holds(self, generation: int = 1, lease_seconds: float | None = None) -> None:
        report = self.keeper.stage(desired_state(generation), 60)
        assert report.succeeded, report.refusals
        self.keeper.commit(generation, lease_seconds)

    def picture(self) -> object:
        return copy.deepcopy(vars(self.server)), self.keeper.lease


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def put(agent: Agent, thing: Thing) -> frozenset[tuple[object, ...]]:
    before = agent.server.foreign_objects()
    thing.put(agent.server)
    made = agent.server.foreign_objects() - before
    assert made, "else this shows nothing"
    return made


def is_named(refusals: tuple[Refusal, ...], thing: Thing) -> bool:
    """Whether exactly one refusal names it: what, where, and the command that removes it."""
    (one,) = (refusal for refusal in refusals if thing.text in refusal.what)
    return one.where == thing.on and thing.remedy in one.remedy and "not ours" in one.what


def is_told(lease: LeaseState, thing: Thing) -> bool:
    """Whether a lease that could not be undone says the same."""
    (said,) = (part for part in lease.detail.split("then ask again") if thing.text in part)
    named = said.strip("; ").startswith(thing.on) and thing.remedy in said
    return lease.phase == "failed" and named


@each_thing
def test_healing_leaves_it(agent: Agent, thing: Thing) -> None:
    agent.holds()
    made = put(agent, thing)
    agent.server.rules.remove(next(entry for entry in agent.server.rules if entry[1]))
    for _ in range(3):
        agent.now += PERIOD_SECONDS
        agent.keeper.notice()
        agent.keeper.tick()
    assert made <= agent.server.foreign_objects() and agent.network.harmed == []
    assert sum(ours for _, ours in agent.server.rules) == 2, "what others removed is back"
    in_place = thing in [THINGS[name] for name in IN_OUR_PLACE]
    assert bool(agent.keeper.drift.notes) == in_place, "told only where it keeps ours away"


@each_thing
@pytest.mark.parametrize("asked", ["destroy", "restore"])
def test_what_would_take_it_away_is_refused_before_anything_changes(
    agent: Agent, thing: Thing, asked: str
) -> None:
    bare = agent.server.foreign_objects(), copy.deepcopy(agent.server.links)
    agent.holds()
    put(agent, thing)
    before = agent.picture()
    for _ in range(2):
        ask = {"destroy": lambda: agent.keeper.destroy(PLAN),
               "restore": lambda: agent.keeper.restore(1)}[asked]  # fmt: skip
        report = ask()
        assert not report.succeeded and report.changes == ()
        assert is_named(report.refusals, thing), report.refusals
        assert agent.picture() == before
    thing.take_off(agent.server)
    assert ask().succeeded and agent.keeper.lease.is_idle
    assert (agent.server.foreign_objects(), agent.server.links) == bare


@each_thing
def test_a_change_that_would_take_it_away_is_refused_as_its_preview_says(
    agent: Agent, thing: Thing
) -> None:
    agent.holds()
    put(agent, thing)
    before = agent.picture()
    fewer = desired_state(2, nics=ONLY_NIC1)
    assert is_named(agent.keeper.preview(fewer).refusals, thing)
    report = agent.keeper.stage(fewer, 60)
    assert is_named(report.refusals, thing) and report.changes == ()
    assert agent.picture() == before


@pytest.mark.parametrize("name", [name for name in THINGS if name not in IN_OUR_PLACE])
def test_a_change_that_keeps_what_it_is_on_leaves_it(agent: Agent, name: str) -> None:
    agent.holds()
    made = put(agent, THINGS[name])
    changed = desired_state(2, rates=(12_000_000, 20_000_000), rules=())
    assert agent.keeper.stage(changed, 60).succeeded
    assert agent.keeper.restore(2).succeeded
    assert made <= agent.server.foreign_objects() and agent.network.harmed == []


@each_thing
def test_a_lease_that_ends_undoes_everything_else_and_says_what_is_left(
    agent: Agent, thing: Thing
) -> None:
    bare = agent.server.foreign_objects(), copy.deepcopy(agent.server.links)
    agent.holds(lease_seconds=20)
    made = put(agent, thing)
    agent.now += 21
    for attempt in range(2):
        if attempt:
            agent.keeper = agent.started()
        report = agent.keeper.tick()
        assert report is not None and not report.succeeded
        assert is_told(agent.keeper.lease, thing)
        assert made <= agent.server.foreign_objects() and agent.network.harmed == []
        assert set(agent.server.bridges) == {"pw-nic0"}, "the other NIC is as it was"
        assert agent.server.links["nic1"] == bare[1]["nic1"]
        assert not any(ours for _, ours in [*agent.server.rules, *agent.server.routes])
        assert "10.7.0.1/24" in agent.server.links["pw-nic0"].addresses, "it is reached as before"
        agent.now += 400
    thing.take_off(agent.server)
    agent.now += 400
    report = agent.keeper.tick()
    assert report is not None and report.succeeded and agent.keeper.lease.is_idle
    assert (agent.server.foreign_objects(), agent.server.links) == bare


@pytest.mark.parametrize("name", ["route", "neighbour", "port", "route in our table"])
def test_a_bridge_that_stays_keeps_its_addresses_though_its_nic_had_none(
    agent: Agent, name: str
) -> None:
    """With the last address the kernel removes the routes and neighbours of others."""
    agent.server.links["nic0"].addresses.clear()
    agent.server.main_routes.clear()
    bare = agent.server.foreign_objects(), copy.deepcopy(agent.server.links)
    agent.holds(lease_seconds=20)
    thing = THINGS[name]
    made = put(agent, thing)
    agent.now += 21
    report = agent.keeper.tick()
    assert report is not None and not report.succeeded and is_told(agent.keeper.lease, thing)
    assert made <= agent.server.foreign_objects() and agent.network.harmed == []
    assert agent.server.links["pw-nic0"].addresses == ["10.7.0.1/24"]
    thing.take_off(agent.server)
    agent.now += 400
    report = agent.keeper.tick()
    assert report is not None and report.succeeded and agent.keeper.lease.is_idle
    assert (agent.server.foreign_objects(), agent.server.links) == bare


@pytest.mark.parametrize("name", ["route", "neighbour"])
def test_the_last_address_of_a_bridge_stays_with_what_is_on_it(agent: Agent, name: str) -> None:
    """Of a change that keeps the bridge, too."""
    agent.server.links["nic0"].addresses.clear()
    agent.server.main_routes.clear()
    agent.holds()
    made = put(agent, THINGS[name])
    before = agent.picture()
    wanted = desired_state(2)
    kept = tuple(a for a in wanted.addresses if a.interface != "pw-nic0")
    routes = tuple(r for r in wanted.routes if r.interface != "pw-nic0")
    rules = tuple(r for r in wanted.rules if any(a.address.split("/")[0] in r.source for a in kept))
    fewer = wanted.model_copy(update={"addresses": kept, "routes": routes, "rules": rules})
    report = agent.keeper.stage(fewer, 60)
    (refusal,) = report.refusals
    assert refusal.where == "address pw-nic0 10.7.0.1/24" and THINGS[name].text in refusal.what
    assert agent.picture() == before and made <= agent.server.foreign_objects()


RACES = {
    name: "queues" if thing.on == "NIC nic0" else "remove bridges"
    for name, thing in THINGS.items()
    if "route elsewhere" not in name
} | {
    "address of our subnet": "remove pw-nic0 10.7.0.1/24",
    "route with our source": "remove pw-nic0 10.7.0.1/24",
    "route elsewhere with our source": "remove pw-nic0 10.7.0.1/24",
    "route elsewhere, over lo, with our source": "remove pw-nic0 10.7.0.1/24",
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_what_came_after_the_look_stays_as_well(agent: Agent, name: str) -> None:
    """Somebody makes it right before the very effect that would take it away."""
    thing = THINGS[name]
    bare = agent.server.foreign_objects(), copy.deepcopy(agent.server.links)
    agent.holds()
    agent.meddler.before, agent.meddler.does = RACES[name], lambda: thing.put(agent.server)
    report = agent.keeper.destroy(PLAN)
    assert agent.meddler.does is None, "it came"
    assert not report.succeeded and agent.network.harmed == []
    assert agent.keeper.lease.phase == "failed"
    assert agent.server.foreign_objects() > bare[0]
    agent.now += 400
    agent.keeper.tick()
    assert is_told(agent.keeper.lease, thing), "and named at the next look"
    thing.take_off(agent.server)
    agent.now += 400
    report = agent.keeper.tick()
    assert report is not None and report.succeeded
    assert (agent.server.foreign_objects(), agent.server.links) == bare


def test_an_address_of_others_is_not_adopted(agent: Agent) -> None:
    """A later plan wants the address that an operator gave to our bridge meanwhile."""
    agent.holds()
    thing = THINGS["address"]
    put(agent, thing)
    wanted = desired_state(2)
    extra = wanted.addresses[0].model_copy(update={"address": "10.99.0.7/24"})
    wanted = wanted.model_copy(update={"addresses": (*wanted.addresses, extra)})
    report = agent.keeper.stage(wanted, 60)
    (refusal,) = report.refusals
    assert "not ours is in its place" in refusal.what and thing.remedy in refusal.remedy
    thing.take_off(agent.server)
    assert agent.keeper.stage(wanted, 60).succeeded
    agent.keeper.commit(2, None)
    assert agent.keeper.stage(desired_state(3), 60).succeeded
    assert "10.99.0.7/24" not in agent.server.links["pw-nic0"].addresses, "now it was ours"


def test_a_ledger_without_addresses_is_completed_from_the_states(
    agent: Agent, tmp_path: Path
) -> None:
    """An agent of before wrote none: its addresses are still ours, and go."""
    agent.holds()
    bare = agent.server.foreign_objects()
    store = DiskStore(tmp_path)
    kept = store.load()
    store.save(kept.model_copy(update={"ledger": kept.ledger.model_copy(update={"addresses": ()})}))
    agent.keeper = agent.started()
    assert agent.keeper.destroy(PLAN).succeeded
    assert agent.server.bridges == {} and agent.server.foreign_objects() == bare


def test_of_very_many_things_the_first_are_named_and_the_rest_counted(agent: Agent) -> None:
    agent.holds()
    agent.server.their_routes += [f"10.60.{n}.0/24 dev pw-nic0" for n in range(70)]
    report = agent.keeper.destroy(PLAN)
    assert len(report.refusals) == 51 and "20 more objects" in report.refusals[-1].what


def test_what_is_beside_ours_is_in_nobodys_way(agent: Agent) -> None:
    """Rules at our priorities, and routes in our tables over other interfaces."""
    state = desired_state(1)
    agent.holds()
    rule, route = state.rules[0], state.routes[0]
    rules = [(rule.model_copy(update={"priority": 18500, "source": "10.1.0.0/16"}), False)]
    routes = [(route.model_copy(update={"interface": "mgmt", "destination": "10.1.0.0/16",
                                        "source": ""}), False)]  # fmt: skip
    agent.server.rules += rules
    agent.server.routes += routes
    assert agent.keeper.destroy(PLAN).succeeded
    assert (agent.server.rules, agent.server.routes) == (rules, routes)


def staged_fewer_queues(state: DesiredState) -> DesiredState:
    gone = "nic0 queue 2"
    return state.model_copy(
        update={
            "queues": tuple(queue for queue in state.queues if queue.key != gone),
            "flows": tuple(f for f in state.flows if (f.bridge, f.queue_id) != ("pw-nic0", 2)),
            "classifiers": tuple(
                c for c in state.classifiers if (c.nic, c.queue_id) != ("nic0", 2)
            ),
        }
    )


def test_a_queue_stays_under_a_discipline_of_others(agent: Agent) -> None:
    agent.holds()
    thing = THINGS["discipline of a class"]
    put(agent, thing)
    (refusal,) = agent.keeper.stage(staged_fewer_queues(desired_state(2)), 60).refusals
    assert refusal.where == "nic0 queue 2" and thing.remedy in refusal.remedy
    thing.take_off(agent.server)
    assert agent.keeper.stage(staged_fewer_queues(desired_state(2)), 60).succeeded


ADDED_TO_NIC0 = {
    "an address of our subnet": ("address 10.7.0.77/24", "ip address del 10.7.0.77/24 dev nic0"),
    "a route": (f"route {THEIR_ROUTE}", f"ip route del {THEIR_ROUTE}"),
}


@pytest.mark.parametrize("what", ADDED_TO_NIC0)
def test_what_others_put_on_a_nic_beside_its_own_address_is_not_taken_away_with_that(
    agent: Agent, what: str
) -> None:
    """The network service sets the NIC's address there again; the agent would move it to the bridge
    once more, and the kernel removes the rest."""
    agent.holds()
    text, command = ADDED_TO_NIC0[what]
    server, link = agent.server, agent.server.links["nic0"]
    server.configure("nic0")
    if what == "a route":
        server.their_routes.append(THEIR_ROUTE)
    else:
        link.addresses.append("10.7.0.77/24")
        link.theirs.add("10.7.0.77/24")
    made, rule = server.foreign_objects(), next(entry for entry in server.rules if entry[1])
    server.rules.remove(rule)
    agent.now += PERIOD_SECONDS
    agent.keeper.notice()
    agent.keeper.tick()
    assert server.foreign_objects() == made and agent.network.harmed == []
    (note,) = agent.keeper.drift.notes
    assert note.startswith("NIC nic0: moving 10.7.0.1/24 to pw-nic0") and text in note
    assert f"({command})" in note
    assert rule in server.rules, "the rest is put back"
    assert server.main_routes == [*base_routes("pw-nic0")], "its route, too"
    refused = agent.keeper.stage(desired_state(2), 60)
    assert [text.split()[1] in r.what for r in refused.refusals] == [True]
    assert refused.changes == ()
    if what == "a route":
        server.their_routes.remove(THEIR_ROUTE)
    else:
        server.remove_address("nic0", "10.7.0.77/24")
    for _ in range(2):
        agent.now += PERIOD_SECONDS
        agent.keeper.notice()
        agent.keeper.tick()
    assert link.addresses == [] and agent.keeper.drift.notes == ()


def test_what_comes_onto_a_nic_while_it_is_taken_over_is_not_taken_away(agent: Agent) -> None:
    agent.meddler.before = "add bridges"
    agent.meddler.does = lambda: agent.server.their_routes.append(THEIR_ROUTE)
    report = agent.keeper.stage(desired_state(1), 60)
    assert not report.succeeded and THEIR_ROUTE in report.refusals[0].what
    assert agent.server.their_routes == [THEIR_ROUTE] and agent.network.harmed == []
    assert agent.server.links["nic0"].addresses == [*base_addresses("nic0")]
    assert agent.keeper.lease.is_idle
