"""Tests what happens when a cluster fails while it is used: what the user is told, the exit code,
and that nothing stays half done. Commands are real, servers in memory; tests/end_to_end has labs.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from placewire.controller.cli import main
from tests.controller.memory_cluster import SILENCE, MemoryCluster, Programs, programs
from tests.free_port import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timed]

APPLY = ("--network-only", "--yes")
# A second agent must have dialled before the first is asked, though their process is held up.
DIAL = {"placewire.controller.agents.agents._ALL_DIAL_SECONDS": 4.0}
# As long as it takes on a machine that is busy: the line says what the agent itself says.
PATIENT = {"placewire.controller.story.dropped_servers._DIAL_SECONDS": 60.0}
IMPATIENT = {"placewire.controller.records.journal_file._WAIT_SECONDS": 0.1}
# Long enough that only an agent that is gone is silent, on a machine that is busy too.
SILENT = {SILENCE: 4.0}


@pytest.fixture(scope="module")
def shared() -> Iterator[Programs]:
    with programs() as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, shared: Programs) -> Iterator[MemoryCluster]:
    built = MemoryCluster(tmp_path)
    with built.running(shared):
        yield built


def phases(cluster: MemoryCluster) -> set[str]:
    return {lease.phase for lease in cluster.leases.values()}


def wait_until_idle(cluster: MemoryCluster) -> None:
    deadline = time.monotonic() + 60
    while phases(cluster) != {"idle"} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert phases(cluster) == {"idle"}


def test_a_preview_that_is_stale_by_now(cluster: MemoryCluster) -> None:
    slow, shown = cluster.plan("slow", "40Mbit"), cluster.folder / "shown.json"
    assert cluster.run("preview", slow, "--network-only", "--out", shown).code == 0
    assert cluster.run("apply", cluster.plan("fast"), *APPLY).code == 0
    before = cluster.leases
    stale = cluster.run("apply", shown, *APPLY)
    assert stale.code == 5 and "not as they were previewed; nothing was changed" in stale.output
    assert all(f"{server}: " in stale.output for server in before)
    assert cluster.leases == before


def test_a_second_change_is_told_who_makes_the_first(cluster: MemoryCluster) -> None:
    plan = cluster.plan()
    cluster.leave("s2", "stage")
    with cluster.start("apply", plan, *APPLY) as first:
        assert first.stdout is not None
        for line in first.stdout:
            if "staging" in line:
                break
        second = cluster.run("apply", plan, *APPLY)
        assert second.code == 2, second.output
        assert f"another change is under way: process {first.pid}, since" in second.output
        assert "wait for it to end" in second.output
        assert "controller attach PLAN --stop" in second.output, "a terminal may not be there"
        status = cluster.run("status", plan, "--json")
        under_way = status.document["under_way"]
        assert under_way["holder"].startswith(f"process {first.pid}, since")
        assert under_way["latest"]["phase"] in ("begun", "staged") and under_way["lines"] == []
        told = cluster.run("status", plan)
        assert told.code == 0 and "agents dial in to that command" in told.output
        elsewhere = cluster.run("destroy", plan, "--yes", "--listen", f"127.0.0.1:{free_port()}")
        assert elsewhere.code == 2, elsewhere.output
        cluster.come_back("s2")
        rest = first.communicate(timeout=60)[0]
    assert first.returncode == 0, rest
    assert phases(cluster) == {"committed"}


def test_a_server_that_is_away_for_a_moment_is_waited_for(cluster: MemoryCluster) -> None:
    cluster.leave("s2", "stage", 0.5)
    done = cluster.run("apply", cluster.plan(), *APPLY, patches={SILENCE: 5.0})
    assert done.code == 0, done.output
    assert phases(cluster) == {"committed"}


@pytest.mark.parametrize("request_", ["preview", "stage", "run_transfers", "commit"])
def test_a_server_that_goes_halfway_is_named_and_all_is_undone(
    cluster: MemoryCluster, request_: str
) -> None:
    """The server comes back while the others are being restored."""
    cluster.leave("s2", request_, "restore")
    done = cluster.run("apply", cluster.plan(), *APPLY, patches=SILENT)
    assert done.code == 5, done.output
    assert "s2: no answer from the agent: silent for" in done.output
    assert "check that the agent runs there" in done.output
    wait_until_idle(cluster)
    cluster.come_back("s2")  # Where it went before anything was changed, nothing is restored.
    assert "recover" not in cluster.run("status", cluster.plan()).output


def test_a_destroy_that_a_server_does_not_answer_says_what_each_holds(
    cluster: MemoryCluster,
) -> None:
    plan = cluster.plan()
    assert cluster.run("apply", plan, *APPLY).code == 0
    cluster.leave("s2", "destroy")
    done = cluster.run("destroy", plan, "--yes", "--json", patches=SILENT)
    assert done.code == 5, done.output
    holds = done.document["holds"]
    gone = "nothing of the plan is left"
    assert holds == {"s1": gone, "s2": "does not say what it holds", "s3": gone}
    for server, words in holds.items():
        assert f"\n  {server}: {words}\n" in done.output
    assert "again, which ends it on s2" in done.document["error"]["remedy"]


def test_a_server_that_never_comes_back_is_forgotten(cluster: MemoryCluster) -> None:
    plan = cluster.plan()
    assert cluster.run("apply", plan, *APPLY).code == 0
    forget = ("destroy", plan, "--yes", "--server", "s2", "--forget")
    there = cluster.run(*forget)
    assert there.code == 2 and "its agent is there" in there.output, there.output
    cluster.leave("s2", "destroy")
    done = cluster.run("destroy", plan, "--yes", patches=SILENT)
    assert done.code == 5 and "`controller destroy PLAN --server s2 --forget`" in done.output
    short = {"placewire.controller.commands.destroy._WAIT_SECONDS": 2.0}
    again = cluster.run("destroy", plan, "--yes", patches=short)
    assert again.code == 5 and "take it out of the plan's file" in again.output, again.output
    done = cluster.run(*forget, "--json", patches=short)
    assert done.code == 0 and done.document["forgotten"] == ["s2"], done.output
    assert "Should a server come back with its disk" in done.output
    assert cluster.run("recover", plan, "--yes").code == 0
    assert cluster.run("status", plan, "--json").document["left_open"] is None
    assert cluster.run("destroy", plan, "--yes", "--forget").code == 2, "it names no server"


def test_a_server_that_goes_and_stays_away_is_said_to_be_left(cluster: MemoryCluster) -> None:
    cluster.leave("s2", "run_transfers")
    short = {"placewire.controller.change.change._RESTORE_TIMEOUT_SECONDS": 3.5}
    done = cluster.run("apply", cluster.plan(), *APPLY, patches=SILENT | short)
    assert done.code == 8, done.output
    assert "not every server is back on its former state: s2: no answer" in done.output
    assert "restores its server within" in done.output
    status = cluster.run("status", cluster.plan())
    assert status.code == 5 and "unreachable" in status.output
    assert "decision 1 was not undone everywhere" in status.output
    cluster.come_back("s2")
    assert cluster.run("recover", cluster.plan(), "--yes").code == 0
    wait_until_idle(cluster)


def test_a_nic_at_the_wrong_speed_is_named_before_anything_changes(
    tmp_path: Path, shared: Programs
) -> None:
    cluster = MemoryCluster(tmp_path)
    cluster.members[1] = dataclasses.replace(cluster.members[1], speeds={"nic1": 10_000_000})
    with cluster.running(shared):
        done = cluster.run("apply", cluster.plan(), *APPLY)
        assert done.code == 5, done.output
        assert "s2 NIC nic1: runs at 10 Mbit/s, less than the 50 Mbit/s" in done.output
        assert "look at its cable" in done.output and "staging" not in done.output
        assert {lease.highest_generation for lease in cluster.leases.values()} == {0}


def test_two_servers_with_one_identity_are_named_and_refused(
    tmp_path: Path, shared: Programs
) -> None:
    cluster = MemoryCluster(tmp_path)
    cluster.members.append(cluster.copy_of("s1", 9))
    with cluster.running(shared):
        for command in (("preview", "--network-only"), ("apply", *APPLY), ("destroy", "--yes")):
            # The first sees both; the others know from its record what the certificate is.
            patches = DIAL if command[0] == "preview" else {}
            done = cluster.run(command[0], cluster.plan(), *command[1:], patches=patches)
            assert done.code == 5, done.output
            assert "s1: two agents say that they are this server" in done.output
            assert "`controller authority deny s1`, then `controller enrol`" in done.output
        assert {lease.highest_generation for lease in cluster.leases.values()} == {0}
        doctor = cluster.run("doctor", cluster.plan(), "--network-only", "--json")
        assert doctor.code == 5
        assert "runs twice, at" in doctor.document["servers"]["s1"][0]["what"], doctor.output
    noted = [json.loads(line) for line in (cluster.state / "refused.jsonl").open()]
    assert any("is a second 's1'" in one["why"] for one in noted)


def test_a_journal_that_another_program_holds_hinders_no_undoing(cluster: MemoryCluster) -> None:
    plan, file = cluster.plan(), cluster.state / "journal.sqlite3"
    for wholly in (False, True):
        assert cluster.run("apply", plan, *APPLY).code == 0
        with closing(sqlite3.connect(file, isolation_level=None)) as other:
            if wholly:
                other.execute("PRAGMA locking_mode = EXCLUSIVE")
            other.execute("BEGIN IMMEDIATE")
            before = cluster.leases
            refused = cluster.run("apply", cluster.plan("fast"), *APPLY, patches=IMPATIENT)
            assert refused.code == (2 if wholly else 1), refused.output
            assert "database is locked" in refused.output and cluster.leases == before
            for command in ("recover", "destroy"):
                done = cluster.run(command, plan, "--yes", patches=IMPATIENT)
                assert done.code == 0, done.output
                assert "Traceback" not in done.output
            assert ("goes on without it" if wholly else "'destroyed'") in done.output
            assert phases(cluster) == {"idle"}
    assert cluster.run("destroy", plan, "--yes").code == 0, "with a journal that has none of it"
    assert "destroyed" in cluster.run("status", plan).output


def test_a_change_that_was_left_is_undone_without_a_journal(cluster: MemoryCluster) -> None:
    plan = cluster.plan()
    whole = cluster.run("apply", plan, *APPLY, "--no-measurement")
    assert whole.code == 0 and whole.steps is not None
    assert cluster.run("destroy", plan, "--yes").code == 0
    killed = cluster.run("apply", plan, *APPLY, "--no-measurement", dies_at=whole.steps // 2)
    assert killed.code == -9
    assert any(lease.expires_unix is not None for lease in cluster.leases.values())
    (cluster.state / "journal.sqlite3").write_bytes(b"no database " * 1000)
    (cluster.state / "journal.sqlite3-wal").unlink(missing_ok=True)
    done = cluster.run("recover", plan, "--yes")
    assert done.code == 0 and "recovery will undo what servers hold" in done.output, done.output
    assert phases(cluster) == {"idle"}


def test_a_recovery_says_what_is_kept_in_the_words_of_status_and_history(
    cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = cluster.plan("slow", "40Mbit"), cluster.plan("fast")
    whole = cluster.run("apply", slow, *APPLY, "--no-measurement")
    assert whole.code == 0 and whole.steps is not None
    killed = cluster.run("apply", fast, *APPLY, "--no-measurement", dies_at=whole.steps // 2)
    assert killed.code == -9
    done = cluster.run("recover", slow, "--yes")
    assert done.code == 0, done.output
    kept = "on every server that answers: decision 1; decision 1 was kept"
    said = " ".join(done.output.split())
    assert said.index("decision 2: the change is undone") < said.index(kept), done.output
    assert "decision 2 was undone" in said[said.index(kept) :]
    assert kept in " ".join(cluster.run("status", slow).output.split())
    with pytest.raises(SystemExit):
        main(["history", "memory", "--state-dir", str(cluster.state)])
    history = capsys.readouterr().out
    became = [line.split("│")[-2].strip() for line in history.splitlines() if "│" in line]
    assert became[:2] == ["kept", "undone"], history
    assert cluster.run("destroy", slow, "--yes").code == 0
    again = cluster.run("recover", slow, "--yes")
    nothing = "on every server that answers: nothing; decision 2 was destroyed"
    assert nothing in " ".join(again.output.split()), again.output


def test_one_recovery_ends_all_that_was_left(cluster: MemoryCluster) -> None:
    """The second controller died in the change that the first had left half kept."""
    slow, fast = cluster.plan("slow", "40Mbit"), cluster.plan("fast")
    whole = cluster.run("apply", slow, *APPLY, "--no-measurement")
    assert whole.code == 0 and whole.steps is not None
    for before_end in range(1, whole.steps):
        dies_at = whole.steps - before_end
        cluster.run("apply", fast, *APPLY, "--no-measurement", dies_at=dies_at)
        left = cluster.run("status", fast, "--json").document["left_open"]
        if left is not None:
            break
    assert left == {"decision": left["decision"], "phase": "keep decided", "over": False}
    cluster.run("apply", slow, *APPLY, "--no-measurement", dies_at=whole.steps // 2)
    held = cluster.run("status", slow, "--json").document["left_open"]
    assert held["decision"] > left["decision"] and held["phase"] == "staged"
    done = cluster.run("recover", slow, "--yes", "--json")
    assert done.code == 0, done.output
    assert (done.document["decision"], done.document["way"]) == (held["decision"], "undo")
    assert done.document["earlier"] == [
        {"decision": left["decision"], "way": "finish", "by_lease": []}
    ]
    status = cluster.run("status", slow, "--json").document
    assert status["left_open"] is None and status["standing"]["decision"] is not None
    assert {lease.expires_unix for lease in cluster.leases.values()} == {None}


def test_a_recovery_that_the_journal_does_not_take_is_made_once(cluster: MemoryCluster) -> None:
    plan, file = cluster.plan(), cluster.state / "journal.sqlite3"
    whole = cluster.run("apply", plan, *APPLY, "--no-measurement")
    assert whole.code == 0 and whole.steps is not None
    killed = cluster.run("apply", plan, *APPLY, "--no-measurement", dies_at=whole.steps // 2)
    assert killed.code == -9
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        done = cluster.run("recover", plan, "--yes", patches=IMPATIENT)
    assert done.code == 0 and done.output.count("the change is undone") == 1, done.output
    assert "recovery will undo it" in done.output
    # Nothing is left to undo, and both say so.
    assert "no server holds anything of it any more" in cluster.run("status", plan).output
    again = cluster.run("recover", plan, "--yes")
    assert again.code == 0 and "recovery only records that it is over" in again.output, again.output
    assert "will undo" not in again.output
    assert "no change was left" in cluster.run("recover", plan, "--yes").output


def test_a_server_that_was_taken_out_of_the_plan_is_named(cluster: MemoryCluster) -> None:
    plan = cluster.plan()
    assert cluster.run("apply", plan, *APPLY).code == 0
    document = yaml.safe_load(plan.read_text())
    del document["cluster"]["servers"][2]
    plan.write_text(yaml.safe_dump(document))
    line = "server s3 is no longer in the plan and still has this network"
    for command in (("apply", *APPLY), ("status",), ("destroy", "--yes")):
        done = cluster.run(command[0], plan, *command[1:], patches=PATIENT)
        assert done.code == 0 and line in done.output, done.output
    assert [lease.phase for lease in cluster.leases.values()] == ["idle", "idle", "committed"]
    done = cluster.run("destroy", plan, "--yes", "--server", "s3")
    assert done.code == 0 and line not in done.output, done.output
    assert phases(cluster) == {"idle"}
    assert line not in cluster.run("status", plan).output


def test_a_rollback_measures_what_was_promised_then(cluster: MemoryCluster) -> None:
    assert cluster.run("apply", cluster.plan(rate="50Mbit"), *APPLY).code == 0
    slower = cluster.plan(rate="20Mbit")
    assert cluster.run("apply", slower, *APPLY).code == 0
    back = cluster.run("rollback", slower, "--yes")
    assert back.code == 0 and "promised" in back.output, back.output
    assert cluster.run("verify", slower).code == 0


def test_a_rollback_to_rails_that_the_plan_no_longer_has_changes_nothing(
    cluster: MemoryCluster,
) -> None:
    plan = cluster.plan()
    assert cluster.run("apply", plan, *APPLY).code == 0
    document = yaml.safe_load(plan.read_text())
    for server in document["cluster"]["servers"]:
        del server["nics"][1]
    plan.write_text(yaml.safe_dump(document))
    assert cluster.run("apply", plan, *APPLY).code == 0
    before = cluster.leases
    refused = cluster.run("rollback", plan, "--yes")
    assert refused.code == 2 and "rail b of this server" in refused.output, refused.output
    assert "`--no-measurement`" in refused.output and cluster.leases == before
    assert cluster.run("rollback", plan, "--yes", "--no-measurement").code == 0
    refused = cluster.run("verify", plan)
    assert refused.code == 2 and "rail b of this server" in refused.output, refused.output
    assert cluster.run("verify", plan, "--no-measurement").code == 0


def test_what_was_left_before_a_cut_off_destroy_is_ended_by_the_same_recovery(
    cluster: MemoryCluster,
) -> None:
    plan = cluster.plan()
    assert cluster.run("apply", plan, *APPLY).code == 0
    some = ("--server", "s1", "--server", "s3")
    cluster.leave("s3", "destroy")
    assert cluster.run("destroy", plan, "--yes", patches=SILENT).code == 5
    cluster.come_back("s3")
    cluster.leave("s3", "destroy")
    assert cluster.run("destroy", plan, "--yes", *some, patches=SILENT).code == 5
    cluster.come_back("s3")
    done = cluster.run("recover", plan, "--yes", "--json")
    assert done.code == 0, done.output
    ended = [done.document["way"], *(one["way"] for one in done.document["earlier"])]
    assert ended == ["destroy", "destroy"], done.output
    status = cluster.run("status", plan, "--json").document
    assert status["left_open"] is None
    assert phases(cluster) == {"idle"}
