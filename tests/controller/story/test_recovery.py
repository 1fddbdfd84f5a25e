"""A controller that dies at any point of a change: what was left open is ended, and every server is
on one and the same decision, the former or the new one.

Agents are real keepers in memory. The controller dies before or after any single message, or any
note in its journal: from then on nothing that it does has an effect, its clearing up included.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

import placewire.controller.change.change as change_module
from placewire.agent.contract.messages import (
    Commit,
    Destroy,
    Observe,
    Preview,
    Renew,
    Restore,
    Stage,
)
from placewire.agent.contract.state import DesiredState
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.lease import LeaseRefusedError
from placewire.agent.reconcile.validate import ServerFacts, WayToController
from placewire.controller.agents.agents import Agents
from placewire.controller.change.change import NetworkChange
from placewire.controller.errors import AgentRefused, AgentUnreachable, RestoreFailed
from placewire.controller.records.journal import Journal
from placewire.controller.story.open_decision import left_open, way_of
from placewire.controller.story.recovery import recover
from tests.agent.states import desired_state
from tests.agent.world import World
from tests.agent.world import plan as state_of
from tests.controller.plans import plan, plan_document

SERVERS = ("s1", "s2", "s3")
PLAN = plan(plan_document(3, name="test-plan"))
OLD, NEW = (10_000_000, 20_000_000), (30_000_000, 5_000_000)
# No change here has so many messages and notes.
MOST_POINTS = 60


class Died(BaseException):
    """SIGKILL: no code of the controller runs any more."""


class Mortal:
    """Dies at the point of this number; None: never."""

    def __init__(self, dies_at: int | None) -> None:
        self._dies_at, self._points = dies_at, itertools.count()
        self.dead = False

    def point(self) -> None:
        if self.dead or next(self._points) == self._dies_at:
            self.dead = True
            raise Died


class MemoryAgents:
    """Stands in for placewire.controller.agents.agents, with keepers as agents."""

    def __init__(self, keepers: Mapping[str, Keeper], mortal: Mortal) -> None:
        self._keepers, self._mortal = keepers, mortal

    @property
    def hello(self) -> Mapping[str, Any]:
        return self._keepers  # of a hello, only the lease is read

    async def missing(self, servers: Sequence[str], timeout_seconds: float) -> list[str]:
        return [server for server in servers if server not in self._keepers]

    async def wait_for(self, servers: Sequence[str], timeout_seconds: float) -> None:
        if missing := await self.missing(servers, timeout_seconds):
            raise AgentUnreachable(missing)

    async def ask_all(
        self, requests: Mapping[str, Any], reply_type: type, timeout_seconds: float
    ) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for server, request in requests.items():
            if isinstance(request, Observe):  # of an observation, only the lease is read
                answers[server] = self._keepers[server]
                continue
            self._mortal.point()
            try:
                answers[server] = _answer(self._keepers[server], request)
            except LeaseRefusedError as error:
                raise AgentRefused(server, error.refusal, answered=answers) from error
            self._mortal.point()
        return answers


def _answer(keeper: Keeper, request: Any) -> Any:
    acts: Mapping[type, Callable[[], Any]] = {
        Preview: lambda: keeper.preview(request.desired),
        Stage: lambda: keeper.stage(request.desired, request.lease_seconds),
        Commit: lambda: keeper.commit(request.generation, request.lease_seconds),
        Renew: lambda: keeper.renew(request.generation, request.lease_seconds),
        Restore: lambda: keeper.restore(request.generation),
        Destroy: lambda: keeper.destroy(request.plan_name),
    }
    return acts[type(request)]()


class MortalJournal:
    """A journal in which each note is a point to die at, too."""

    def __init__(self, journal: Journal, mortal: Mortal) -> None:
        self._journal, self._mortal = journal, mortal

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._journal, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            self._mortal.point()
            result = method(*arguments, **named)
            self._mortal.point()
            return result

        return noted if name in ("begin", "decide", "note", "keep") else method


class Cluster:
    def __init__(self, folder: Path, journal: Journal) -> None:
        self.journal = journal
        self.worlds = {server: World(folder / server) for server in SERVERS}
        self.keepers = {server: _keeper(server, world) for server, world in self.worlds.items()}

    def desired(self, rates: tuple[int, int]) -> dict[str, DesiredState]:
        return {
            server: state_of(
                self.journal.next_generation(server, keeper.lease.highest_generation),
                queues=desired_state(1, rates, nics=("nic0",)).queues,
                server=server, plan_digest=str(rates),
            )
            for server, keeper in self.keepers.items()
        }  # fmt: skip

    def controller(self, mortal: Mortal) -> tuple[Agents, Journal]:
        agents, journal = MemoryAgents(self.keepers, mortal), MortalJournal(self.journal, mortal)
        return cast(Agents, agents), cast(Journal, journal)

    def leases_end(self) -> None:
        for server, world in self.worlds.items():
            world.now += 3600
            self.keepers[server].tick()

    def in_force(self) -> set[str]:
        """Returns digests of what servers have in force; "" for nothing."""
        return {
            "" if keeper.desired is None else keeper.desired.plan_digest
            for keeper in self.keepers.values()
        }


def _keeper(server: str, world: World) -> Keeper:
    facts = ServerFacts(server, "netdev", (3, 1), frozenset({"mgmt"}))
    way = WayToController(frozenset({"10.9.0.1"}))
    return Keeper(
        world.network, world.store, facts, lambda: way, lambda: world.now, 0, lambda: world.now
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Journal.open(tmp_path / "journal") as journal:
        yield Cluster(tmp_path, journal)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_module, "_RESTORE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(change_module, "_RESTORE_TIMEOUT_SECONDS", 0.01)


async def keep(cluster: Cluster, mortal: Mortal, rates: tuple[int, int] = NEW) -> None:
    async with NetworkChange(*cluster.controller(mortal), cluster.desired(rates)) as change:
        await change.stage()
        await change.commit()
        await change.keep()


async def run_and_restore(cluster: Cluster, mortal: Mortal) -> None:
    async with NetworkChange(*cluster.controller(mortal), cluster.desired(NEW)) as change:
        await change.stage()
        await change.commit()


async def destroy(cluster: Cluster, mortal: Mortal) -> None:
    agents, journal = cluster.controller(mortal)
    latest = cluster.journal.decisions()[-1]
    journal.decide(latest.id, "destroy decided")
    await agents.ask_all(dict.fromkeys(SERVERS, Destroy(plan_name="test-plan")), object, 1)  # type: ignore[type-var]
    journal.decide(latest.id, "destroyed")


async def recovered(cluster: Cluster) -> None:
    await recover(PLAN, *cluster.controller(Mortal(None)))


CHANGES: Mapping[str, Callable[[Cluster, Mortal], Coroutine[Any, Any, None]]] = {
    "keep": keep, "run and restore": run_and_restore, "destroy": destroy,
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after the leases"])
def test_after_a_death_at_any_point_all_servers_are_on_one_decision(
    what: str, waits: bool, tmp_path: Path
) -> None:
    ends: dict[str, int] = {}
    for point in range(MOST_POINTS):
        with Journal.open(tmp_path / str(point) / "journal") as journal:
            cluster = Cluster(tmp_path / str(point), journal)
            asyncio.run(keep(cluster, Mortal(None), OLD))
            mortal = Mortal(point)
            with suppress(Died):
                asyncio.run(CHANGES[what](cluster, mortal))
            if waits:
                cluster.leases_end()
            asyncio.run(recovered(cluster))
            (digest,) = cluster.in_force()
            cluster.leases_end()
            assert cluster.in_force() == {digest}, f"point {point}: it stays"
            assert left_open(journal, "test-plan") is None
            ends[digest] = ends.get(digest, 0) + mortal.dead
        if not mortal.dead:
            break
    assert not mortal.dead, "more points than were tried"
    allowed = {
        "keep": {str(OLD), str(NEW)},
        "run and restore": {str(OLD)},
        "destroy": {"", str(OLD)},
    }
    assert set(ends) == allowed[what], ends
    assert sum(ends.values()) >= 8


def test_what_is_not_reached_is_due_again(cluster: Cluster) -> None:
    asyncio.run(keep(cluster, Mortal(None), OLD))
    # Staging, committing and half of keeping: 3 servers, 2 points each, and the notes between.
    point = next(k for k in range(MOST_POINTS) if _is_half_kept(cluster, k))
    assert point
    away = cluster.keepers.pop("s3")
    with pytest.raises(AgentUnreachable, match="is not ended there"):
        asyncio.run(recovered(cluster))
    assert cluster.in_force() == {str(NEW)}
    cluster.keepers["s3"] = away
    asyncio.run(recovered(cluster))
    assert cluster.in_force() == {str(NEW)} and left_open(cluster.journal, "test-plan") is None


def died_while_keeping(folder: Path) -> Iterator[tuple[int, Cluster]]:
    """Clusters whose controller died after "keep decided", each at another point, by the point."""
    for point in range(MOST_POINTS):
        with Journal.open(folder / str(point) / "journal") as journal:
            cluster = Cluster(folder / str(point), journal)
            asyncio.run(keep(cluster, Mortal(None), OLD))
            mortal = Mortal(point)
            with suppress(Died):
                asyncio.run(keep(cluster, mortal))
            if not mortal.dead:
                return
            if journal.decisions()[-1].last_phase == "keep decided":
                yield point, cluster


def recovered_wholly(cluster: Cluster) -> None:
    """As the command does, which goes on until nothing is left open."""
    for _ in cluster.journal.decisions():
        if left_open(cluster.journal, "test-plan") is not None:
            asyncio.run(recovered(cluster))
    assert left_open(cluster.journal, "test-plan") is None


@pytest.mark.parametrize("gone", ["s1", "s3"])
def test_a_server_that_was_away_is_brought_to_the_decision_when_it_is_back(
    gone: str, tmp_path: Path
) -> None:
    """Its lease ended meanwhile where it was not told to keep."""
    points = 0
    for point, cluster in died_while_keeping(tmp_path):
        away = cluster.keepers.pop(gone)
        with pytest.raises(AgentUnreachable, match="is not ended there") as caught:
            asyncio.run(recovered(cluster))
        assert caught.value.servers == (gone,)
        assert cluster.in_force() == {str(NEW)}, "the others are on one decision"
        cluster.keepers[gone] = away
        cluster.leases_end()
        done = asyncio.run(recover(PLAN, *cluster.controller(Mortal(None))))
        assert done is not None and done.way == "finish", f"point {point}"
        assert {keeper.lease.is_kept for keeper in cluster.keepers.values()} == {True}
        assert cluster.in_force() == {str(NEW)}, f"point {point}"
        assert left_open(cluster.journal, "test-plan") is None
        points += 1
    assert points >= 6, "before, between and after three servers"


def test_servers_that_are_away_in_turn_are_brought_to_the_decision(cluster: Cluster) -> None:
    asyncio.run(keep(cluster, Mortal(None), OLD))
    with pytest.raises(Died):
        asyncio.run(keep(cluster, Mortal(17)))
    for gone in ("s3", "s2"):
        away = cluster.keepers.pop(gone)
        with pytest.raises(AgentUnreachable, match="is not ended there"):
            asyncio.run(recovered(cluster))
        cluster.keepers[gone] = away
        cluster.leases_end()
    asyncio.run(recovered(cluster))
    assert cluster.in_force() == {str(NEW)} and left_open(cluster.journal, "test-plan") is None


def test_a_recovery_that_dies_while_a_server_is_away_is_recovered(tmp_path: Path) -> None:
    for point in range(MOST_POINTS):
        with Journal.open(tmp_path / str(point) / "journal") as journal:
            cluster = Cluster(tmp_path / str(point), journal)
            asyncio.run(keep(cluster, Mortal(None), OLD))
            with pytest.raises(Died):
                asyncio.run(keep(cluster, Mortal(19)))
            away, mortal = cluster.keepers.pop("s3"), Mortal(point)
            with suppress(Died, AgentUnreachable):
                asyncio.run(recover(PLAN, *cluster.controller(mortal)))
            cluster.keepers["s3"] = away
            cluster.leases_end()
            recovered_wholly(cluster)
            assert cluster.in_force() == {str(NEW)}, f"point {point}"
            assert {keeper.lease.is_kept for keeper in cluster.keepers.values()} == {True}
        if not mortal.dead:
            break
    assert not mortal.dead, "more points than were tried"
    assert point >= 12


def test_what_a_server_may_have_kept_is_no_lease_s_to_undo(cluster: Cluster) -> None:
    """The server was told to keep, and heard nothing more; the others were restored."""
    asyncio.run(keep(cluster, Mortal(None), OLD))
    lost = Away(cluster, "s3")
    with pytest.raises(RestoreFailed, match="s3"):
        asyncio.run(lost.keep())
    away = cluster.keepers.pop("s3")
    with pytest.raises(AgentUnreachable, match="is not ended there"):
        asyncio.run(recovered(cluster))
    cluster.keepers["s3"] = away
    cluster.leases_end()
    assert cluster.in_force() == {str(OLD), str(NEW)}
    asyncio.run(recovered(cluster))
    assert cluster.in_force() == {str(OLD)} and left_open(cluster.journal, "test-plan") is None


class Away(MemoryAgents):
    """This server keeps when told to, and is then out of reach."""

    def __init__(self, cluster: Cluster, server: str) -> None:
        super().__init__(cluster.keepers, Mortal(None))
        self._cluster, self._server = cluster, server

    async def ask_all(
        self, requests: Mapping[str, Any], reply_type: type, timeout_seconds: float
    ) -> dict[str, Any]:
        request = next(iter(requests.values()))
        if isinstance(request, Restore):
            requests = {s: r for s, r in requests.items() if s != self._server}
        answers = await super().ask_all(requests, reply_type, timeout_seconds)
        kept = isinstance(request, Commit) and request.lease_seconds is None
        if kept or isinstance(request, Restore):
            answers.pop(self._server, None)
            raise AgentUnreachable([self._server], answered=answers)
        return answers

    async def keep(self) -> None:
        agents, journal = cast(Agents, self), self._cluster.journal
        async with NetworkChange(agents, journal, self._cluster.desired(NEW)) as change:
            await change.stage()
            await change.commit()
            await change.keep()


@pytest.mark.parametrize("first", [None, OLD], ids=["nothing before", "one kept before"])
@pytest.mark.parametrize("failures", [1, 2])
def test_what_one_server_keeps_is_undone_after_a_later_job_too(
    first: tuple[int, int] | None, failures: int, cluster: Cluster
) -> None:
    """Its agent no longer knows what it held before: a job was staged over what it keeps."""
    if first is not None:
        asyncio.run(keep(cluster, Mortal(None), first))
    for _ in range(failures):
        with pytest.raises(RestoreFailed, match="s3"):
            asyncio.run(Away(cluster, "s3").keep())
    asyncio.run(run_and_restore(cluster, Mortal(None)))
    before = "" if first is None else str(first)
    assert cluster.in_force() == {before, str(NEW)}
    found = left_open(cluster.journal, "test-plan")
    assert found is not None and way_of(found) == "undo"
    recovered_wholly(cluster)
    assert cluster.in_force() == {before}
    cluster.leases_end()
    assert cluster.in_force() == {before}, "it stays"


@pytest.mark.parametrize("gone", ["s1", "s3"])
def test_what_one_server_keeps_is_undone_when_a_server_is_back(gone: str, cluster: Cluster) -> None:
    asyncio.run(keep(cluster, Mortal(None), OLD))
    with pytest.raises(RestoreFailed, match="s3"):
        asyncio.run(Away(cluster, "s3").keep())
    asyncio.run(run_and_restore(cluster, Mortal(None)))
    away = cluster.keepers.pop(gone)
    with pytest.raises(AgentUnreachable, match="is not ended there"):
        asyncio.run(recovered(cluster))
    assert cluster.in_force() == {str(OLD)}, "the others are on one decision"
    cluster.keepers[gone] = away
    recovered_wholly(cluster)
    assert cluster.in_force() == {str(OLD)}


def test_what_only_one_server_had_is_not_forgotten_while_it_is_away(cluster: Cluster) -> None:
    """s3 was added to the plan with the change that it alone keeps, and had nothing before."""
    added = cluster.keepers.pop("s3")
    asyncio.run(keep(cluster, Mortal(None), OLD))
    cluster.keepers["s3"] = added
    with pytest.raises(RestoreFailed, match="s3"):
        asyncio.run(Away(cluster, "s3").keep())
    asyncio.run(run_and_restore(cluster, Mortal(None)))
    del cluster.keepers["s3"]
    with pytest.raises(AgentUnreachable, match="decision 2 is not ended there"):
        asyncio.run(recovered(cluster))
    assert cluster.in_force() == {str(OLD)}
    cluster.keepers["s3"] = added
    recovered_wholly(cluster)
    assert cluster.in_force() == {str(OLD), ""} and added.desired is None


def test_each_server_gets_what_it_had_where_that_was_not_the_same(cluster: Cluster) -> None:
    """s3 was not in the plan for a while, and kept the older decision."""
    asyncio.run(keep(cluster, Mortal(None), OLD))
    added, newer = cluster.keepers.pop("s3"), (20_000_000, 20_000_000)
    asyncio.run(keep(cluster, Mortal(None), newer))
    cluster.keepers["s3"] = added
    with pytest.raises(RestoreFailed, match="s3"):
        asyncio.run(Away(cluster, "s3").keep())
    asyncio.run(run_and_restore(cluster, Mortal(None)))
    recovered_wholly(cluster)
    had = {s: keeper.desired.plan_digest for s, keeper in cluster.keepers.items() if keeper.desired}
    assert had == {"s1": str(newer), "s2": str(newer), "s3": str(OLD)}


def _is_half_kept(cluster: Cluster, point: int) -> bool:
    """Runs a keep that dies at this point, and undoes it where nothing was kept yet."""
    with suppress(Died):
        asyncio.run(keep(cluster, Mortal(point)))
    found = left_open(cluster.journal, "test-plan")
    if found is not None and way_of(found) == "finish":
        return True
    asyncio.run(recovered(cluster))
    return False


def test_a_later_change_that_was_restored_took_along_what_was_only_staged(
    cluster: Cluster,
) -> None:
    for point, left in ((6, False), (20, True)):
        asyncio.run(keep(cluster, Mortal(None), OLD))
        with suppress(Died):
            asyncio.run(keep(cluster, Mortal(point)))
        assert left_open(cluster.journal, "test-plan") is not None
        asyncio.run(run_and_restore(cluster, Mortal(None)))
        assert (left_open(cluster.journal, "test-plan") is not None) == left


def test_nothing_is_left_of_changes_that_ended(cluster: Cluster) -> None:
    assert left_open(cluster.journal, "test-plan") is None
    for change in (keep, run_and_restore, destroy):
        asyncio.run(change(cluster, Mortal(None)))
        assert left_open(cluster.journal, "test-plan") is None
        assert asyncio.run(recover(PLAN, *cluster.controller(Mortal(None)))) is None
