"""A journal that was put back from a backup ends nothing that is in force by now.

Agents are real keepers in memory; the backup is a copy of the journal's file, taken at some moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

import placewire.controller.change.change as change_module
from placewire.agent.contract.messages import Observe
from placewire.agent.contract.state import LeaseState
from placewire.controller.agents.agents import Agents
from placewire.controller.errors import AgentProblem, AgentUnreachable, JournalFailed
from placewire.controller.records.journal import Journal
from placewire.controller.story.open_decision import left_open, way_of
from placewire.controller.story.recovery import examine, recover
from placewire.controller.story.rollback import roll_back
from placewire.controller.story.what_is_known import Known, require_known
from tests.controller.story.test_destruction import carries_other, tools
from tests.controller.story.test_recovery import (
    NEW,
    OLD,
    PLAN,
    SERVERS,
    Cluster,
    Died,
    MemoryAgents,
    Mortal,
    destroy,
    keep,
    recovered,
    run_and_restore,
)

LATER = (20_000_000, 20_000_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_module, "_RESTORE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(change_module, "_RESTORE_TIMEOUT_SECONDS", 0.01)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Journal.open(tmp_path / "journal") as journal:
        made = Cluster(tmp_path, journal)
        asyncio.run(keep(made, Mortal(None), OLD))
        yield made


def agents(cluster: Cluster) -> Agents:
    return cast(Agents, MemoryAgents(cluster.keepers, Mortal(None)))


@contextmanager
def backup(cluster: Cluster, folder: Path) -> Iterator[Journal]:
    """The journal as it is now."""
    folder.mkdir()
    with Journal.open(folder) as old:
        cluster.journal._file.database.backup(old._file.database)
        yield old


def left_at(cluster: Cluster, way: str) -> None:
    """The controller dies in a change that is to be ended in this way, as the journal has it."""
    change = {"finish": keep, "undo": run_and_restore, "destroy": destroy}[way]
    for point in range(60):
        with suppress(Died):
            asyncio.run(change(cluster, Mortal(point)))
        found = left_open(cluster.journal, "test-plan")
        if found is not None and way_of(found) == way:
            return
    raise AssertionError(way)


@pytest.mark.parametrize("way", ["finish", "undo", "destroy"])
def test_what_was_made_since_the_backup_is_not_touched(
    way: str, cluster: Cluster, tmp_path: Path
) -> None:
    left_at(cluster, way)
    with backup(cluster, tmp_path / "backup") as old:
        asyncio.run(recovered(cluster))
        asyncio.run(keep(cluster, Mortal(None), LATER))
        with pytest.raises(JournalFailed, match="nothing was changed") as caught:
            asyncio.run(recover(PLAN, agents(cluster), old))
    assert set(caught.value.holds) == set(SERVERS)
    assert "which the journal does not have; its newest there is" in caught.value.holds["s1"]
    assert "`controller apply PLAN`" in caught.value.remedy
    assert cluster.in_force() == {str(LATER)}
    assert {keeper.lease.is_kept for keeper in cluster.keepers.values()} == {True}


def test_what_the_backup_has_as_staged_and_was_kept_is_not_undone(
    cluster: Cluster, tmp_path: Path
) -> None:
    with suppress(Died):
        asyncio.run(run_and_restore(cluster, Mortal(8)))
    with backup(cluster, tmp_path / "backup") as old:
        latest = cluster.journal.decisions()[-1]
        for server, keeper in cluster.keepers.items():
            if keeper.lease.generation != latest.generations[server]:
                keeper.stage(cluster.desired(NEW)[server].model_copy(
                    update={"generation": latest.generations[server]}), 30)  # fmt: skip
            keeper.commit(keeper.lease.generation, None)
        with pytest.raises(JournalFailed) as caught:
            asyncio.run(recover(PLAN, agents(cluster), old))
    assert "the journal has decision 2 as 'staged'" in caught.value.holds["s1"]
    assert cluster.in_force() == {str(NEW)}


def test_a_destroyed_network_is_not_brought_back_by_a_backup(
    cluster: Cluster, tmp_path: Path
) -> None:
    left_at(cluster, "finish")
    with backup(cluster, tmp_path / "backup") as old:
        asyncio.run(recovered(cluster))
        asyncio.run(destroy(cluster, Mortal(None)))
        with pytest.raises(JournalFailed, match="nothing was changed") as caught:
            asyncio.run(recover(PLAN, agents(cluster), old))
    assert "has seen generation" in caught.value.holds["s1"]
    assert cluster.in_force() == {""}


def test_where_nothing_was_left_open_a_difference_is_told_all_the_same(
    cluster: Cluster, tmp_path: Path
) -> None:
    with backup(cluster, tmp_path / "backup") as old:
        assert asyncio.run(examine(PLAN, agents(cluster), old)) is None
        asyncio.run(keep(cluster, Mortal(None), LATER))
        with pytest.raises(JournalFailed):
            asyncio.run(examine(PLAN, agents(cluster), old))


def test_a_journal_that_says_destroyed_is_told_what_servers_hold(cluster: Cluster) -> None:
    cluster.journal.note_removals("test-plan", SERVERS)
    with pytest.raises(JournalFailed) as caught:
        asyncio.run(examine(PLAN, agents(cluster), cluster.journal))
    assert "the journal has decision 1 as destroyed there" in caught.value.holds["s2"]


def test_a_generation_of_another_decision_is_told() -> None:
    known = Known({}, {"s1": 3}, {}, frozenset({"abc"}))
    lease = LeaseState(phase="committed", generation=4, plan_name="p", plan_digest="abc")
    with pytest.raises(JournalFailed) as caught:
        require_known("p", known, {"s1": lease}, None)
    assert "holds generation 4 of plan 'p'" in caught.value.holds["s1"]
    require_known("other", known, {"s1": lease}, "finish")


def test_a_backup_does_not_choose_what_to_roll_back_to(cluster: Cluster, tmp_path: Path) -> None:
    asyncio.run(keep(cluster, Mortal(None), NEW))
    with backup(cluster, tmp_path / "backup") as old:
        asyncio.run(keep(cluster, Mortal(None), LATER))

        async def never() -> bool:
            raise AssertionError("nobody is asked")

        with pytest.raises(JournalFailed, match="nothing was changed"):
            asyncio.run(roll_back(PLAN, None, tools(cluster, old), never))
    assert cluster.in_force() == {str(LATER)}


# -- a server that carries another plan -----------------------------------------------------------


def ended_beside_another(cluster: Cluster, way: str) -> Callable[[], object]:
    left_at(cluster, way)
    carries_other(cluster, "s2")
    # As where one journal has both plans.
    lease = cluster.keepers["s2"].lease
    cluster.journal.begin("other", lease.plan_digest or "", {"s2": lease.generation})
    return lambda: asyncio.run(recover(PLAN, agents(cluster), cluster.journal))


@pytest.mark.parametrize("way", ["undo", "destroy"])
def test_a_server_that_carries_another_plan_is_passed_over(way: str, cluster: Cluster) -> None:
    done = ended_beside_another(cluster, way)()
    assert done is not None and done.others == {"s2": "other"}  # type: ignore[attr-defined]
    assert left_open(cluster.journal, "test-plan") is None
    held = {s: keeper.lease.plan_name for s, keeper in cluster.keepers.items()}
    assert held["s2"] == "other"
    assert {held["s1"], held["s3"]} == ({"test-plan"} if way == "undo" else {None})


def test_what_is_to_be_kept_waits_for_a_server_that_carries_another_plan(cluster: Cluster) -> None:
    again = ended_beside_another(cluster, "finish")
    for _ in range(2):
        with pytest.raises(AgentProblem, match="another plan is in force there") as caught:
            again()
        assert caught.value.where == "s2" and "s2 carries plan 'other'" in caught.value.remedy
        assert "Or give plan 'test-plan' up: `controller destroy`" in caught.value.remedy
        assert cluster.keepers["s1"].lease.is_kept and cluster.keepers["s3"].lease.is_kept
    cluster.keepers["s2"].destroy("other")
    again()
    assert cluster.in_force() == {str(NEW)} and left_open(cluster.journal, "test-plan") is None


@pytest.mark.parametrize("way", ["finish", "undo", "destroy"])
def test_nothing_is_done_to_a_server_that_does_not_say_what_it_holds(
    way: str, cluster: Cluster
) -> None:
    class Silent(MemoryAgents):
        async def ask_all(
            self, requests: Mapping[str, Any], reply_type: type, timeout_seconds: float
        ) -> dict[str, Any]:
            assert "s2" not in requests or isinstance(requests["s2"], Observe)
            answered = {s: one for s, one in requests.items() if s != "s2"}
            answers = await super().ask_all(answered, reply_type, timeout_seconds)
            if answered.keys() != requests.keys():
                raise AgentUnreachable(["s2"], answered=answers)
            return answers

    left_at(cluster, way)
    before = cluster.keepers["s2"].lease
    silent = cast(Agents, Silent(cluster.keepers, Mortal(None)))
    if way == "undo":
        done = asyncio.run(recover(PLAN, silent, cluster.journal))
        assert done is not None and done.by_lease == ("s2",)
    else:
        with pytest.raises(AgentUnreachable, match="is not ended there"):
            asyncio.run(recover(PLAN, silent, cluster.journal))
    assert cluster.keepers["s2"].lease == before
