"""Real commands killed by SIGKILL at seeded points of apply and destroy: the next ones bring every
server to one decision, the former or the new one, and `status` says which and why.

The servers are in memory; the controllers are processes, and link, journal and agents are real.
"""

from __future__ import annotations

import itertools
import random
import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.controller.forked_commands import Done
from tests.controller.memory_cluster import MemoryCluster

pytestmark = pytest.mark.thorough

POINTS = 100
# Of those that are killed from outside: anywhere in this time, most of which is the change.
LONGEST_SECONDS = 0.6


def in_force(cluster: MemoryCluster) -> str | None:
    """The digest of the one decision that all agents have on disk; None: nothing."""
    found = {(lease.phase, lease.plan_digest) for lease in cluster.leases.values()}
    assert len(found) == 1, cluster.leases
    ((phase, digest),) = found
    assert phase in ("idle", "committed"), cluster.leases
    assert all(lease.expires_unix is None for lease in cluster.leases.values())
    return None if phase == "idle" else digest


def said_by_status(cluster: MemoryCluster, plan: Path) -> str:
    """After checking that it holds together; the words."""
    told = cluster.run("status", plan, "--json")
    assert told.code == 0, told.output
    servers = told.document["servers"].values()
    assert all(one["read_back"] is False or not one["read_back"]["deviations"] for one in servers)
    assert told.document["left_open"] is None
    assert (told.document["standing"]["decision"] is None) == (in_force(cluster) is None)
    words: str = told.document["standing"]["why"]
    return words


def test_every_point_ends_on_one_decision(tmp_path: Path) -> None:
    cluster, rng = MemoryCluster(tmp_path), random.Random(6)
    plans = {"slow": cluster.plan("slow", "40Mbit"), "fast": cluster.plan("fast", "50Mbit")}
    ends: Counter[str] = Counter()
    with cluster.running():
        digests, steps = {}, {}
        for name, plan in plans.items():
            done = cluster.run("apply", plan, "--network-only", "--yes")
            assert done.code == 0, done.output
            digests[name], steps["apply"] = in_force(cluster), done.steps or 0
        done = cluster.run("destroy", plans["fast"], "--yes")
        assert done.code == 0 and in_force(cluster) is None, done.output
        steps["destroy"] = done.steps or 0
        assert steps["apply"] > 40 and steps["destroy"] >= 10, "each message, each note"
        assert len({*digests.values()}) == 2

        for point in itertools.count():
            if sum(ends.values()) - ends["was quicker"] == POINTS:
                break
            before = in_force(cluster)
            name = rng.choice([one for one in plans if digests[one] != before])
            what = rng.choice(["apply", "apply", "destroy"] if before else ["apply"])
            done = killed(cluster, rng, what, plans[name], steps[what])
            if done.code != -signal.SIGKILL:
                assert done.code == 0, done.output
            recovered = cluster.run("recover", plans[name], "--yes")
            assert recovered.code == 0, f"{point}: {recovered.output}"
            aim, after = digests[name] if what == "apply" else None, in_force(cluster)
            assert after in (before, aim), f"{point}: {what} {done}"
            words = said_by_status(cluster, plans[name])
            assert re.search(r"on every server that answers: (decision \d+|nothing); .+", words)
            assert re.search(
                r"decision \d+ was (kept|undone|destroyed|finished by a later decision) 20", words
            )
            if "nothing was left" not in recovered.output:
                assert "by recovery" in words, words
            if done.code == -signal.SIGKILL:
                ends[f"{what}: {'new' if after == aim else 'old'}"] += 1
            else:
                ends["was quicker"] += 1
    assert list(cluster.temporary.iterdir()) == [], "no key of a controller that is gone"
    assert all(ends[f"{what}: {end}"] for what in ("apply", "destroy") for end in ("old", "new"))


def killed(cluster: MemoryCluster, rng: random.Random, what: str, plan: Path, steps: int) -> Done:
    """At a step of its own, or from outside after a time."""
    words = [what, plan, "--yes", *(["--network-only"] if what == "apply" else [])]
    if rng.random() < 0.7:
        return cluster.run(*words, dies_at=rng.randrange(steps))
    return cluster.run(*words, killed_after=rng.uniform(0.05, LONGEST_SECONDS))
