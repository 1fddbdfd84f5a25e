"""The journal: on disk when it says so, generations only go up, one change at a time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.controller.errors import UsageError
from placewire.controller.records.journal import Journal


def test_a_decision_s_phases_are_kept_over_reopening(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        first = journal.begin("plan", "d1", {"s1": 1, "s2": 4})
        journal.decide(first, "committed")
        second = journal.begin("plan", "d2", {"s1": 2})
        journal.decide(first, "restored", detail="as it was")
    with Journal.open(tmp_path) as journal:
        decisions = journal.decisions()
    assert [(d.id, d.plan_digest, d.generations) for d in decisions] == [
        (first, "d1", {"s1": 1, "s2": 4}),
        (second, "d2", {"s1": 2}),
    ]
    assert [p.name for p in decisions[0].phases] == ["staged", "committed", "restored"]
    assert decisions[0].phases[-1].detail == "as it was"
    assert [p.name for p in decisions[1].phases] == ["staged"]


def test_a_generation_that_does_not_go_up_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.begin("plan", "d1", {"s1": 5})
        with pytest.raises(ValueError, match="s1: generation 5 was used already"):
            journal.begin("plan", "d2", {"s2": 9, "s1": 5})
        assert len(journal.decisions()) == 1
        assert journal.next_generation("s2", 0) == 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["s1", "s2"]), st.integers(0, 50)), max_size=8))
def test_the_next_generation_is_above_all_that_was_used_or_reported(
    steps: list[tuple[str, int]],
) -> None:
    highest = {"s1": 0, "s2": 0}
    with tempfile.TemporaryDirectory() as folder, Journal.open(Path(folder)) as journal:
        for server, reported in steps:
            generation = journal.next_generation(server, reported)
            assert generation > max(highest[server], reported)
            journal.begin("plan", "d", {server: generation})
            highest[server] = generation


def test_runs_are_kept_by_plan(tmp_path: Path) -> None:
    with Journal.open(tmp_path) as journal:
        journal.record_run("a", '{"n": 1}')
        journal.record_run("b", '{"n": 2}')
        journal.record_run("a", '{"n": 3}')
        assert [run.report for run in journal.runs("a")] == ['{"n": 1}', '{"n": 3}']
        assert [run.plan_name for run in journal.runs()] == ["a", "b", "a"]


HOLD = """
import sys
from pathlib import Path
from placewire.controller.records.journal import Journal
with Journal.open(Path(sys.argv[1])) as journal, journal.exclusive():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_change_is_told_who_holds_the_first_and_a_dead_holder_lets_go(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with Journal.open(tmp_path) as journal:
            with pytest.raises(UsageError, match=f"process {holder.pid}, since 2"):
                with journal.exclusive():
                    pass
            holder.kill()
            holder.wait()
            with journal.exclusive():
                pass


def test_what_was_begun_survives_a_kill(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from placewire.controller.records.journal import Journal\n"
        "with Journal.open(Path(sys.argv[1])) as j:\n"
        "    j.begin('plan', 'd', {'s1': 7}); os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    assert done.returncode == -9
    with Journal.open(tmp_path) as journal:
        assert journal.next_generation("s1", 0) == 8
        assert [d.phases[-1].name for d in journal.decisions()] == ["staged"]


def test_a_folder_that_cannot_be_used_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="journal"):
        with Journal.open(tmp_path / "file"):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
