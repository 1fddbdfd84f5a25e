"""A server that never comes back is given up: the journal forgets it, and nobody waits for it.

Agents are real keepers in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from placewire.controller.errors import AgentUnreachable, JournalFailed, UsageError
from placewire.controller.records.journal import Journal
from placewire.controller.story.destruction import (
    about_forgetting,
    destroyed,
    forget,
    require_forgettable,
)
from placewire.controller.story.open_decision import left_open
from placewire.controller.story.recovery import recover
from tests.controller.story.test_destruction import (
    SMALLER,
    half_destroyed,
    held,
    named,
    quick,
    tools,
)
from tests.controller.story.test_recovery import OLD, PLAN, SERVERS, Cluster, Died, Mortal, keep

__all__ = ["quick"]  # a fixture of all these tests
FORGET = "`controller destroy PLAN --server s3 --forget`"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Each server keeps a decision."""
    with Journal.open(tmp_path / "journal") as journal:
        made = Cluster(tmp_path, journal)
        asyncio.run(keep(made, Mortal(None), OLD))
        yield made


def test_a_dead_server_is_named_until_it_is_forgotten(cluster: Cluster) -> None:
    away = cluster.keepers.pop("s3")
    (line,) = named(SMALLER, tools(cluster))
    assert FORGET in line
    forget(SMALLER, ["s3"], cluster.journal)
    assert named(SMALLER, tools(cluster)) == []
    assert cluster.journal.holding("test-plan") == {"s1", "s2"}
    latest = cluster.journal.decisions()[-1]
    assert latest.last_phase == "kept" and left_open(cluster.journal, "test-plan") is None
    assert latest.phases[-1].detail == "forgotten, removed on s3"
    cluster.keepers["s3"] = away
    (line,) = named(SMALLER, tools(cluster))
    assert line.endswith("still has this network; `controller destroy PLAN --server s3` takes it "
                         "away"), "it has come back, as was said"  # fmt: skip
    asyncio.run(destroyed(SMALLER, ["s3"], tools(cluster)))
    assert named(SMALLER, tools(cluster)) == []
    assert "name that server as before" in about_forgetting(["s3"])


def test_recovery_does_not_wait_for_a_server_that_was_forgotten(cluster: Cluster) -> None:
    of = half_destroyed(cluster, PLAN, SERVERS)
    del cluster.keepers["s3"]
    with pytest.raises(AgentUnreachable, match="is not ended there") as caught:
        asyncio.run(recover(PLAN, of.agents, cluster.journal))
    assert FORGET in caught.value.remedy
    forget(PLAN, ["s3"], cluster.journal)
    found = left_open(cluster.journal, "test-plan")
    assert found is not None and found.to_destroy == SERVERS, "the others were not heard yet"
    done = asyncio.run(recover(PLAN, of.agents, cluster.journal))
    assert done is not None and (done.way, done.servers) == ("destroy", ("s1", "s2"))
    assert left_open(cluster.journal, "test-plan") is None and cluster.in_force() == {""}


def test_where_a_forgotten_server_is_back_recovery_names_it(cluster: Cluster) -> None:
    of = half_destroyed(cluster, PLAN, SERVERS)
    forget(PLAN, ["s3"], cluster.journal)
    with pytest.raises(JournalFailed) as caught:
        asyncio.run(recover(PLAN, of.agents, cluster.journal))
    assert "as destroyed there" in caught.value.holds["s3"]
    asyncio.run(destroyed(PLAN, SERVERS, of))
    assert cluster.in_force() == {""} and left_open(cluster.journal, "test-plan") is None


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_plan_whose_servers_are_all_gone_is_settled(cluster: Cluster, one_by_one: bool) -> None:
    of = half_destroyed(cluster, PLAN, SERVERS)
    cluster.keepers.clear()
    for servers in [[s] for s in SERVERS] if one_by_one else [SERVERS]:
        forget(PLAN, servers, cluster.journal)
    asyncio.run(recover(PLAN, of.agents, cluster.journal))
    assert left_open(cluster.journal, "test-plan") is None
    assert cluster.journal.holding("test-plan") == frozenset()


@pytest.mark.parametrize(
    ("servers", "present", "what"),
    [
        (["s2", "s3"], ["s2"], "its agent is there, and nothing was forgotten"),
        (["s3", "s33"], [], "the journal has nothing of plan 'test-plan' there"),
        (["s3"], [], ""),
    ],
)
def test_only_what_is_away_and_known_is_forgotten(
    cluster: Cluster, servers: Sequence[str], present: Sequence[str], what: str
) -> None:
    if not what:
        require_forgettable(PLAN, servers, present, cluster.journal)
        return
    with pytest.raises(UsageError, match=what) as caught:
        require_forgettable(PLAN, servers, present, cluster.journal)
    assert caught.value.where in ("s2", "s33")


@pytest.mark.parametrize("settled_by", ["apply", "destroy"])
def test_a_server_that_was_to_keep_an_open_decision_is_forgotten_once_that_is_settled(
    cluster: Cluster, settled_by: str
) -> None:
    with pytest.raises(Died):
        asyncio.run(keep(cluster, Mortal(17)))
    assert cluster.journal.decisions()[-1].last_phase == "keep decided"
    del cluster.keepers["s3"]
    with pytest.raises(AgentUnreachable, match="is not ended there") as away:
        asyncio.run(recover(PLAN, tools(cluster).agents, cluster.journal))
    with pytest.raises(UsageError, match="was left open: nothing was forgotten") as refused:
        require_forgettable(PLAN, ["s3"], [], cluster.journal)
    for remedy in (away.value.remedy, refused.value.remedy):
        assert "take it out of the plan's file, and `controller apply PLAN`" in remedy
    require_forgettable(PLAN, SERVERS, [], cluster.journal)  # Of all servers nobody waits for one.
    if settled_by == "apply":
        asyncio.run(keep(cluster, Mortal(None)))
    else:
        asyncio.run(destroyed(SMALLER, ["s1", "s2"], tools(cluster)))
    require_forgettable(SMALLER, ["s3"], [], cluster.journal)
    forget(SMALLER, ["s3"], cluster.journal)
    assert "s3" not in cluster.journal.holding("test-plan")
    assert asyncio.run(recover(SMALLER, tools(cluster).agents, cluster.journal)) is None


def test_nothing_counts_as_forgotten_that_the_journal_could_not_take(
    cluster: Cluster, tmp_path: Path
) -> None:
    with held(tmp_path / "journal"), pytest.raises(JournalFailed):
        forget(PLAN, ["s3"], cluster.journal)
    assert "s3" in cluster.journal.holding("test-plan")
