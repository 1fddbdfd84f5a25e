"""Destroys with and without a journal, on all servers and on some; says what was left out.

Agents are real keepers in memory.
"""

from __future__ import annotations

import asyncio
import io
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import placewire.controller.change.change as change_module
import placewire.controller.records.journal_file as journal_files
from placewire.agent.contract.messages import Destroy, Observe
from placewire.agent.contract.state import ForeignEntry
from placewire.controller.agents.agents import Agents
from placewire.controller.commands.destroy import _told as told_of_destroy
from placewire.controller.errors import (
    AgentProblem,
    AgentUnreachable,
    JournalFailed,
    RestoreFailed,
)
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Journal, to_remove_on
from placewire.controller.show.story import Show
from placewire.controller.story.destruction import destroyed, others_on
from placewire.controller.story.dropped_servers import dropped_servers
from placewire.controller.story.held import left_otherwise
from placewire.controller.story.open_decision import left_open
from placewire.controller.story.recovery import recover, recover_by_leases
from placewire.controller.story.tools import Tools
from tests.agent.memory_agent import MemoryAgent
from tests.agent.memory_server import Link, mac
from tests.agent.states import desired_state
from tests.controller.plans import plan, plan_document
from tests.controller.story.test_recovery import (
    NEW,
    OLD,
    PLAN,
    SERVERS,
    Away,
    Cluster,
    Died,
    MemoryAgents,
    Mortal,
    keep,
    run_and_restore,
)

SMALLER = plan(plan_document(2, name="test-plan"))


class Observed(MemoryAgents):
    """As MemoryAgents, and says what each server has in force. silent: a server that dials in and
    answers no request."""

    silent: str | None = None

    async def ask_all(
        self, requests: Mapping[str, Any], reply_type: type, timeout_seconds: float
    ) -> dict[str, Any]:
        if all(isinstance(request, Observe) for request in requests.values()):
            return {server: self._keepers[server] for server in requests}
        if self.silent is not None and self.silent in requests:
            others = {server: one for server, one in requests.items() if server != self.silent}
            answered = await super().ask_all(others, reply_type, timeout_seconds)
            raise AgentUnreachable([self.silent], answered=answered)
        return await super().ask_all(requests, reply_type, timeout_seconds)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_module, "_RESTORE_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(change_module, "_RESTORE_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(journal_files, "_WAIT_SECONDS", 0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Journal.open(tmp_path / "journal") as journal:
        made = Cluster(tmp_path, journal)
        asyncio.run(keep(made, Mortal(None), OLD))
        yield made


@contextmanager
def held(folder: Path, *, wholly: bool = False) -> Iterator[None]:
    """Another program has the journal; wholly: it lets nobody read either."""
    with closing(sqlite3.connect(folder / "journal.sqlite3", isolation_level=None)) as other:
        if wholly:
            other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        yield


def tools(cluster: Cluster, journal: Journal | None = None) -> Tools:
    show = Show()
    show.console.file = io.StringIO()
    agents = cast(Agents, Observed(cluster.keepers, Mortal(None)))
    return Tools(agents, journal or cluster.journal, NoLauncher(), Path(), Path(), show)


def said(of: Tools) -> str:
    return cast(io.StringIO, of.show.console.file).getvalue()


def test_a_destroy_needs_no_journal_that_can_be_written(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with held(tmp_path / "journal"):
        asyncio.run(destroyed(PLAN, SERVERS, tools(cluster)))
    assert cluster.in_force() == {""}
    told = capsys.readouterr().err
    assert "the journal does not have that it is 'destroyed': database is locked" in told


def test_a_destroy_needs_no_journal_that_can_be_read(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "journal.sqlite3").write_bytes(b"no database " * 1000)
    told: list[str] = []
    with Journal.open(tmp_path / "other", told.append, needed=False) as journal:
        asyncio.run(destroyed(PLAN, SERVERS, tools(cluster, journal)))
    assert cluster.in_force() == {""} and "goes on without it" in told[0]


def test_an_undo_by_recovery_needs_no_journal_that_can_be_written(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Died):
        asyncio.run(run_and_restore(cluster, Mortal(8)))
    assert str(NEW) in cluster.in_force()
    with held(tmp_path / "journal"):
        done = asyncio.run(recover(PLAN, tools(cluster).agents, cluster.journal))
    assert done is not None and done.way == "undo" and cluster.in_force() == {str(OLD)}
    assert "does not have that it is 'undone'" in capsys.readouterr().err


def test_without_a_journal_what_is_under_a_lease_is_undone(cluster: Cluster) -> None:
    with pytest.raises(Died):
        asyncio.run(run_and_restore(cluster, Mortal(6)))
    assert cluster.in_force() == {str(OLD), str(NEW)}, "it died in the middle"
    agents = tools(cluster).agents
    restored = asyncio.run(recover_by_leases(PLAN, agents, "the journal cannot be read"))
    assert restored and cluster.in_force() == {str(OLD)}
    assert asyncio.run(recover_by_leases(PLAN, agents, "")) == (), "nothing is left to do"


def test_without_a_journal_servers_that_keep_different_decisions_are_named(
    cluster: Cluster,
) -> None:
    keeper = cluster.keepers["s2"]
    desired = cluster.desired(NEW)["s2"]
    keeper.stage(desired, 30)
    keeper.commit(desired.generation, None)
    with pytest.raises(JournalFailed, match=r"the journal is gone, so it is not known which") as no:
        asyncio.run(recover_by_leases(PLAN, tools(cluster).agents, "the journal is gone"))
    assert no.value.where == "s1, s2, s3" and "on s1, s3" in no.value.what
    assert "`controller destroy PLAN`" in no.value.remedy
    assert cluster.in_force() == {str(OLD), str(NEW)}, "nothing was changed"


# -- servers that were taken out of the plan -------------------------------------------------------


def named(plan: Plan, of: Tools, but: Sequence[str] = ()) -> list[str]:
    return asyncio.run(dropped_servers(plan, of, but=but))


def test_a_server_that_was_taken_out_of_the_plan_is_named_until_it_is_destroyed(
    cluster: Cluster,
) -> None:
    assert named(PLAN, tools(cluster)) == []
    remedy = "`controller destroy PLAN --server s3` takes it away"
    still = [f"server s3 is no longer in the plan and still has this network; {remedy}"]
    assert named(SMALLER, tools(cluster)) == still
    asyncio.run(destroyed(SMALLER, ["s1", "s2"], tools(cluster)))
    assert named(SMALLER, tools(cluster)) == still, "destroying the plan leaves it there"
    away = cluster.keepers.pop("s3")
    (line,) = named(SMALLER, tools(cluster))
    assert "kept this network, and its agent has not dialled in" in line and remedy in line
    cluster.keepers["s3"] = away
    assert named(SMALLER, tools(cluster), but=["s3"]) == []
    asyncio.run(destroyed(SMALLER, ["s3"], tools(cluster)))
    assert named(SMALLER, tools(cluster)) == [] and cluster.in_force() == {""}
    del cluster.keepers["s3"]
    assert named(SMALLER, tools(cluster)) == [], "and the journal knows it"


def test_a_server_that_was_taken_out_of_the_plan_may_dial_in_after_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = cluster.keepers.pop("s3")

    async def missing(
        agents: Observed, servers: Sequence[str], timeout_seconds: float
    ) -> list[str]:
        assert list(servers) == ["s3"] and timeout_seconds == 1.0
        cluster.keepers["s3"] = last
        return []

    monkeypatch.setattr(Observed, "missing", missing)
    (line,) = named(SMALLER, tools(cluster))
    assert "still has this network" in line


def test_a_destroy_of_some_servers_leaves_the_decision_in_force(cluster: Cluster) -> None:
    asyncio.run(destroyed(PLAN, ["s3"], tools(cluster)))
    assert cluster.in_force() == {"", str(OLD)}
    assert cluster.journal.decisions()[-1].last_phase == "kept"
    asyncio.run(destroyed(PLAN, SERVERS, tools(cluster)))
    assert cluster.journal.decisions()[-1].last_phase == "destroyed"


def half_destroyed(cluster: Cluster, plan: Plan, servers: Sequence[str]) -> Tools:
    """A destroy on these servers that s3 does not answer; it answers from then on."""
    of = tools(cluster)
    agents = cast(Observed, of.agents)
    agents.silent = "s3"
    with pytest.raises(AgentUnreachable, match="no answer"):
        asyncio.run(destroyed(plan, servers, of))
    agents.silent = None
    assert cluster.in_force() == {"", str(OLD)}, "it is half done"
    return of


@pytest.mark.parametrize("plan", [PLAN, SMALLER], ids=["back in the plan", "taken out"])
def test_recovery_destroys_where_it_was_decided(cluster: Cluster, plan: Plan) -> None:
    """s3 keeps a decision; the latest one, which was restored, is of the other servers only."""
    away = cluster.keepers.pop("s3")
    asyncio.run(run_and_restore(cluster, Mortal(None)))
    cluster.keepers["s3"] = away
    of = half_destroyed(cluster, plan, SERVERS)

    del cluster.keepers["s3"]
    with pytest.raises(AgentUnreachable, match="is not ended there"):
        asyncio.run(recover(plan, of.agents, cluster.journal))
    cluster.keepers["s3"] = away
    done = asyncio.run(recover(plan, of.agents, cluster.journal))
    assert done is not None and done.way == "destroy" and done.servers == SERVERS
    assert cluster.in_force() == {""} and left_open(cluster.journal, "test-plan") is None
    assert cluster.journal.holding("test-plan") == frozenset()


def test_a_destroy_that_a_former_release_decided_is_on_the_servers_of_its_decision(
    cluster: Cluster,
) -> None:
    latest = cluster.journal.decisions()[-1]
    cluster.journal.note(latest.id, "destroy decided")
    done = asyncio.run(recover(PLAN, tools(cluster).agents, cluster.journal))
    assert done is not None and done.servers == SERVERS and cluster.in_force() == {""}


# -- a destroy that is refused, or that is cut off ------------------------------------------------


FOREIGN = (
    ForeignEntry(
        collection="addresses",
        key="pw-nic0 10.99.0.7/24",
        text="address 10.99.0.7/24",
        on="pw-nic0",
    ),
)


def hold_back(cluster: Cluster, servers: Sequence[str]) -> None:
    """Another program's address on the bridges of these servers, and of no other."""
    for server, world in cluster.worlds.items():
        world.network.foreign = FOREIGN if server in servers else ()


@pytest.mark.parametrize("servers", [SERVERS, ("s1", "s2")], ids=["all", "some"])
def test_a_destroy_that_every_server_refused_is_not_carried_out_later(
    cluster: Cluster, servers: Sequence[str]
) -> None:
    hold_back(cluster, SERVERS)
    with pytest.raises(AgentProblem, match="refused, and no network was changed") as no:
        asyncio.run(destroyed(PLAN, servers, tools(cluster)))
    assert no.value.exit_code == 5 and "s2 bridge pw-nic0: " in no.value.what
    assert (
        "agent restore" not in no.value.remedy and "`controller destroy` again" in no.value.remedy
    )
    hold_back(cluster, ())
    assert cluster.journal.decisions()[-1].last_phase == "kept"
    asyncio.run(run_and_restore(cluster, Mortal(None)))
    assert left_open(cluster.journal, "test-plan") is None
    assert asyncio.run(recover(PLAN, tools(cluster).agents, cluster.journal)) is None
    assert cluster.in_force() == {str(OLD)}
    assert set(cluster.journal.in_force("test-plan")) == set(SERVERS)


def test_a_destroy_for_which_nobody_was_asked_is_not_carried_out_later(cluster: Cluster) -> None:
    class Twice(Observed):
        async def ask_all(
            self, requests: Mapping[str, Any], reply_type: type, timeout_seconds: float
        ) -> dict[str, Any]:
            if any(isinstance(request, Destroy) for request in requests.values()):
                raise AgentProblem("two agents say that they are this server", where="s1")
            return await super().ask_all(requests, reply_type, timeout_seconds)

    agents = cast(Agents, Twice(cluster.keepers, Mortal(None)))
    of = replace(tools(cluster), agents=agents)
    with pytest.raises(AgentProblem, match="two agents"):
        asyncio.run(destroyed(PLAN, SERVERS, of))
    assert left_open(cluster.journal, "test-plan") is None


def test_a_destroy_that_some_servers_refused_is_ended_by_recovery(cluster: Cluster) -> None:
    hold_back(cluster, ["s2"])
    with pytest.raises(RestoreFailed, match=r"10\.99"):
        asyncio.run(destroyed(PLAN, SERVERS, tools(cluster)))
    assert cluster.journal.holding("test-plan") == {"s2"}
    hold_back(cluster, ())
    done = asyncio.run(recover(PLAN, tools(cluster).agents, cluster.journal))
    assert done is not None and done.way == "destroy" and cluster.in_force() == {""}


def test_a_destroy_that_was_begun_and_failed_is_left_open(cluster: Cluster) -> None:
    for world in cluster.worlds.values():
        world.network.fail_after = 0
    with pytest.raises(RestoreFailed, match="no such device"):
        asyncio.run(destroyed(PLAN, SERVERS, tools(cluster)))
    found = left_open(cluster.journal, "test-plan")
    assert found is not None and found.last_phase == "destroy decided"


def test_what_a_cut_off_destroy_did_is_in_the_journal(cluster: Cluster) -> None:
    half_destroyed(cluster, PLAN, SERVERS)
    assert cluster.journal.holding("test-plan") == {"s3"}


def test_what_recovery_destroyed_while_a_server_is_away_is_in_the_journal(
    cluster: Cluster,
) -> None:
    latest = cluster.journal.decisions()[-1]
    cluster.journal.note(latest.id, "destroy decided")
    del cluster.keepers["s3"]
    with pytest.raises(AgentUnreachable, match="is not ended there"):
        asyncio.run(recover(PLAN, tools(cluster).agents, cluster.journal))
    assert cluster.journal.holding("test-plan") == {"s3"}


def test_recovery_ends_a_destroy_of_some_servers_on_these_alone(cluster: Cluster) -> None:
    half_destroyed(cluster, PLAN, ("s1", "s3"))
    found = left_open(cluster.journal, "test-plan")
    assert found is not None and found.to_destroy == ("s1", "s3")
    assert set(cluster.journal.in_force("test-plan")) == {"s2", "s3"}
    done = asyncio.run(recover(PLAN, tools(cluster).agents, cluster.journal))
    assert done is not None and done.servers == ("s1", "s3")
    kept = {server for server, keeper in cluster.keepers.items() if keeper.lease.is_kept}
    assert kept == {"s2"} == set(cluster.journal.in_force("test-plan"))
    assert cluster.journal.decisions()[-1].last_phase == "kept"
    assert left_open(cluster.journal, "test-plan") is None


def test_what_was_left_before_a_destroy_of_some_servers_is_left_after_it(cluster: Cluster) -> None:
    """s3 alone keeps a decision, which is still to be undone."""
    with pytest.raises(RestoreFailed, match="s3"):
        asyncio.run(Away(cluster, "s3").keep())
    asyncio.run(run_and_restore(cluster, Mortal(None)))
    before = left_open(cluster.journal, "test-plan")
    asyncio.run(destroyed(PLAN, ["s1", "s2"], tools(cluster)))
    after = left_open(cluster.journal, "test-plan")
    assert before is not None and after is not None and before.id == after.id


@pytest.mark.parametrize("refused", [True, False])
def test_a_destroy_answers_for_those_that_were_cut_off_before_it(
    cluster: Cluster, refused: bool
) -> None:
    latest = cluster.journal.decisions()[-1]
    for servers in (["s1"], ["s1", "s2"], ["s2", "s1"]):
        detail = to_remove_on(servers, all_of_plan=False)
        cluster.journal.note(latest.id, "destroy decided", detail=detail)
    if refused:
        hold_back(cluster, SERVERS)
        with pytest.raises(AgentProblem, match="every server refused"):
            asyncio.run(destroyed(PLAN, ["s1", "s2"], tools(cluster)))
    else:
        asyncio.run(destroyed(PLAN, ["s1", "s2"], tools(cluster)))
    assert left_open(cluster.journal, "test-plan") is None
    assert cluster.journal.decisions()[-1].last_phase == "kept"


def test_a_destroy_of_all_that_was_cut_off_outlasts_one_of_some_servers(cluster: Cluster) -> None:
    half_destroyed(cluster, PLAN, SERVERS)
    asyncio.run(destroyed(PLAN, ["s1"], tools(cluster)))
    found = left_open(cluster.journal, "test-plan")
    assert found is not None and found.to_destroy == SERVERS and not found.destroy_is_partial


# -- servers that carry another plan, and what each holds after a destroy of some -----------------


def carries_other(cluster: Cluster, server: str) -> None:
    """Somebody destroyed the plan there, and keeps plan `other`."""
    keeper = cluster.keepers[server]
    keeper.destroy("test-plan")
    desired = cluster.desired(NEW)[server].model_copy(update={"plan_name": "other"})
    keeper.stage(desired, 30)
    keeper.commit(desired.generation, None)


def others(of: Tools, servers: Sequence[str] = SERVERS) -> dict[str, str]:
    return asyncio.run(others_on("test-plan", servers, of.agents, of.journal))


def test_where_every_server_carries_another_plan_nothing_is_begun(cluster: Cluster) -> None:
    asyncio.run(destroyed(PLAN, SERVERS, tools(cluster)))
    for server in SERVERS:
        carries_other(cluster, server)
    with pytest.raises(AgentProblem, match="nothing was changed") as caught:
        others(tools(cluster))
    assert "s1 carries plan 'other'" in caught.value.remedy
    assert "`controller destroy` with that plan's file" in caught.value.remedy


def test_a_server_that_carries_another_plan_hinders_no_destroy(cluster: Cluster) -> None:
    carries_other(cluster, "s2")
    of = tools(cluster)
    found = others(of)
    assert found == {"s2": "other"}
    reports = asyncio.run(destroyed(PLAN, SERVERS, of, found))
    assert set(reports) == {"s1", "s3"} and all(report.changes for report in reports.values())
    assert cluster.in_force() == {"", str(NEW)}, "the other plan stays"
    assert cluster.journal.decisions()[-1].last_phase == "destroyed"
    assert cluster.journal.holding("test-plan") == frozenset()


@pytest.mark.parametrize("left_at", ["keep decided", "kept"])
def test_a_plan_is_given_up_where_every_server_carries_another(
    left_at: str, cluster: Cluster
) -> None:
    if left_at == "keep decided":
        latest = cluster.journal.begin("test-plan", "new", dict.fromkeys(SERVERS, 2))
        cluster.journal.keep(latest, dict.fromkeys(SERVERS, "{}"))
    for server in SERVERS:
        carries_other(cluster, server)
    of = tools(cluster)
    if left_at == "keep decided":
        with pytest.raises(AgentProblem, match="another plan is in force there") as caught:
            asyncio.run(recover(PLAN, of.agents, cluster.journal))
        assert "Or give plan 'test-plan' up: `controller destroy`" in caught.value.remedy
    assert asyncio.run(destroyed(PLAN, SERVERS, of, others(of))) == {}
    assert cluster.in_force() == {str(NEW)}, "the other plan stays"
    assert cluster.journal.holding("test-plan") == frozenset()
    for server in SERVERS:
        cluster.keepers[server].destroy("other")
    assert asyncio.run(recover(PLAN, of.agents, cluster.journal)) is None, "it does not come back"
    assert cluster.in_force() == {""}


def test_a_plan_is_given_up_on_a_server_that_carries_another(cluster: Cluster) -> None:
    carries_other(cluster, "s2")
    of = tools(cluster)
    assert asyncio.run(destroyed(PLAN, ["s2"], of, others(of, ["s2"]))) == {}
    assert cluster.journal.holding("test-plan") == {"s1", "s3"}
    with pytest.raises(AgentProblem, match="nothing was changed"):
        others(of, ["s2"])


def test_a_destroy_of_some_servers_says_what_each_holds(cluster: Cluster) -> None:
    of = tools(cluster)
    cast(Observed, of.agents).silent = "s3"
    hold_back(cluster, ["s2"])
    with pytest.raises(AgentUnreachable) as caught:
        asyncio.run(destroyed(PLAN, SERVERS, of))
    problem = caught.value
    assert problem.exit_code == 5
    assert problem.document()["holds"] == dict(problem.holds)
    assert problem.holds["s1"] == "nothing of the plan is left"
    assert problem.holds["s2"] == "holds generation 1 of plan 'test-plan'"
    assert "s1: nothing of the plan is left" in str(problem)
    assert "again, which ends it on s2, s3" in problem.remedy


def test_a_nic_that_stays_up_is_told_and_not_all_called_as_before(tmp_path: Path) -> None:
    """It was down before, and somebody has put an interface on it since."""
    agent = MemoryAgent(tmp_path)
    agent.server.set_up("nic0", False)
    assert agent.keeper.stage(desired_state(1), 30).succeeded
    agent.keeper.commit(1, None)
    agent.server.links["vlan7"] = Link(mac("vlan7"), above="nic0")
    agents = cast(Agents, Observed({"s1": agent.keeper}, Mortal(None)))
    assert agent.keeper.destroy("test-plan").succeeded
    otherwise = asyncio.run(left_otherwise(agents, ["s1"]))
    assert "NIC nic0 was left up" in otherwise["s1"]
    for others in (dict[str, str](), {"s2": "another"}):
        said = told_of_destroy("test-plan", {"s1": 9}, others, otherwise)
        assert "not as before: s1: NIC nic0 was left up" in said
        assert "as it was before Placewire" not in said and "as before Placewire" not in said
