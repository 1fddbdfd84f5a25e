"""Every table of figures in docs/benchmarks says of which commit it is, and the commit exists."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.report import UNKNOWN
from benchmarks.reproduction.findings import FILE, Run, Solve, load
from tests.documents import DOCUMENTS, name_of
from tests.optimizer.published.comparison_rows import row
from tests.paths import ROOT

REPORTS = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))
# As git shortens names; the hash of a step's structure has twelve digits.
COMMIT = r"[0-9a-f]{7,10}"
# A word has no digit, and a number no letter.
ANYWHERE = re.compile(rf"\b(?=[a-f]*[0-9])(?=[0-9]*[a-f]){COMMIT}\b")


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.stem)
def test_each_table_names_its_commit_and_the_page_its_command(report: Path) -> None:
    """One whose commit nobody can name says that its figures are not renewed."""
    head, *sections = re.split(r"^## ", report.read_text(), flags=re.M)
    assert re.search(r"`make [a-z-]+`", head), "which command makes it?"
    for section in sections or [head]:
        where = section.splitlines()[0]
        measured = re.search(rf"at commit (?:{COMMIT}|{UNKNOWN})\b", section)
        measured = measured or re.search(rf"at commit {COMMIT}\b", head)
        assert measured is not None, where
        assert not measured[0].endswith(UNKNOWN) or "not renewed" in section, where


def test_each_commit_that_is_named_is_one_of_this_history_where_that_is_whole() -> None:
    """In a copy without git's files, or with a part of the history, it holds only that each name
    looks like one."""
    named = {(found, name_of(page)) for page in DOCUMENTS for found in named_in(page.read_text())}
    named |= {(found, FILE.name) for found in commits_of(load(FILE).values()) - {UNKNOWN}}
    assert len(named) > 20
    assert [one for one in sorted(named) if re.fullmatch(COMMIT, one[0]) is None] == []
    if has_whole_history(ROOT):
        gone = missing(ROOT, [commit for commit, _ in named])
        assert [one for one in sorted(named) if one[0] in gone] == []


def named_in(text: str) -> set[str]:
    return {*ANYWHERE.findall(text), *re.findall(rf"\bcommit ({COMMIT})\b", text)}


def commits_of(runs: Iterable[Run]) -> set[str]:
    """Those of the runs, of which one that was taken up again has several, and of their solves."""
    return {name for run in runs for name in (*run.commits, *(one.commit for one in run.solves))}


def test_a_run_that_was_taken_up_again_names_each_of_its_commits() -> None:
    solve = Solve(row=row(), commit="0dd10c69", machine="m", date="d")
    run = Run(
        source="s", key="k", commit="558b0e38 and 8f0c29a4", machine="m", date="d", findings=(),
        solves=(solve,),
    )  # fmt: skip
    assert commits_of([run]) == {"558b0e38", "8f0c29a4", "0dd10c69"}


def has_whole_history(folder: Path) -> bool:
    asked = _git(folder, "rev-parse", "--is-shallow-repository")
    return asked.returncode == 0 and asked.stdout.strip() == "false"


def missing(folder: Path, commits: Iterable[str]) -> set[str]:
    """Those that are none before the checked out one, or more than one."""
    before = _git(folder, "rev-list", "HEAD").stdout.splitlines()
    count = {name: sum(one.startswith(name) for one in before) for name in commits}
    return {name for name, found in count.items() if found != 1}


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_commit_that_is_not_in_a_history_is_missed(tmp_path: Path) -> None:
    assert not has_whole_history(tmp_path)
    _git(tmp_path, "init", "--quiet")
    who = ["-c", "user.name=x", "-c", "user.email=x@example"]
    _git(tmp_path, *who, "commit", "--quiet", "--allow-empty", "-m", "The first")
    first = _git(tmp_path, "rev-parse", "--short", "HEAD").stdout.strip()
    _git(tmp_path, "checkout", "--quiet", "-b", "aside")
    _git(tmp_path, *who, "commit", "--quiet", "--allow-empty", "-m", "The second")
    second = _git(tmp_path, "rev-parse", "--short", "HEAD").stdout.strip()
    assert has_whole_history(tmp_path) and missing(tmp_path, [first, second]) == set()
    _git(tmp_path, "checkout", "--quiet", first)
    assert missing(tmp_path, [first, second, "b3077fc"]) == {second, "b3077fc"}
    assert named_in(f"at commit {first}, 1234567 bytes, `effaced`") == {first}
    assert named_in("commit 1234567, or `0dd10c69`") == {"1234567", "0dd10c69"}
    clone = tmp_path / "clone"
    _git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{tmp_path}", str(clone))
    assert clone.is_dir() and not has_whole_history(clone)
