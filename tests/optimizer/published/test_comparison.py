"""Tests `optimizer compare`: rows, their file, rankings and tables, and workers that end early."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.placement import load_placement
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.comparison import running
from placewire.optimizer.published.comparison.cases import (
    Case,
    ComparedCluster,
    Method,
    crossed,
    meant_method,
    read_graph,
)
from placewire.optimizer.published.comparison.ranking import (
    own_gap,
    rankings,
    seconds_to_gap,
    seconds_until,
)
from placewire.optimizer.published.comparison.rescoring import step_under
from placewire.optimizer.published.comparison.rows import RowsFile, RowsFileError
from placewire.optimizer.published.comparison.tables import csv_text, table_lines
from placewire.optimizer.published.comparison.worker import settings_of
from tests.optimizer.cases import cluster, graph, layered
from tests.optimizer.published.comparison_rows import ROW, row
from tests.paths import ROOT

_TWO = ComparedCluster("two", cluster())


@pytest.fixture
def files(tmp_path):
    graph_file, cluster_file = tmp_path / "small.json.gz", tmp_path / "two.json"
    save_graph(layered(2, 2), graph_file)
    cluster_file.write_text(cluster(2, (8e7, 8e7)).model_dump_json())
    return graph_file, cluster_file, tmp_path / "out"


def compare(files, *extra: str) -> int:
    graph_file, cluster_file, out = (str(file) for file in files)
    shape = ["--cluster", cluster_file, "--time-limit", "60", "--out", out]
    return main(["compare", graph_file, *shape, *extra])


def test_a_comparison_is_a_table_a_csv_file_and_two_pictures(files, capsys):
    engines = "--engines", "single", "heft"
    assert compare(files, *engines, "--reductions", "none", "spotlight", "--seeds", "3") == 0
    said = capsys.readouterr()
    assert "small (16 operators) on two: no step is shorter than" in said.out
    assert "heft (spotlight): refused after" in said.out
    *table, written = said.out.splitlines()
    assert all(len(line) <= 100 for line in table)
    assert written.endswith("out: rows.jsonl, table.csv, steps.png, search.png")
    # `single` takes no reduction: once, not twice.
    assert "[3/3] small on two: heft, reduction spotlight, contended, seed 3" in said.err
    with (files[2] / "table.csv").open() as text:
        found = list(csv.DictReader(text))
    assert [(one["engine"], one["outcome"]) for one in found] == [
        ("single", "placed"), ("heft", "placed"), ("heft", "refused"),
    ]  # fmt: skip
    best = min(float(one["contended_seconds"]) for one in found[:2])
    assert [float(one["over_best"]) for one in found[:2]] == [
        pytest.approx(float(one["contended_seconds"]) / best) for one in found[:2]
    ]
    for picture in ("steps.png", "search.png"):
        assert (files[2] / picture).read_bytes().startswith(b"\x89PNG")
    placement = load_placement(files[2] / "placements" / f"{found[1]['key']}.json.gz")
    assert placement.step_seconds == float(found[1]["step_seconds"])


def test_what_was_interrupted_goes_on_where_it_ended(files, capsys):
    assert compare(files, "--engines", "single", "--json") == 0
    first = json.loads(capsys.readouterr().out)["rows"]
    rows = files[2] / "rows.jsonl"
    kept = rows.read_bytes()
    rows.write_bytes(kept + b'{"key": "cut o')  # as a power failure leaves it
    assert compare(files, "--engines", "single", "random", "--json") == 0
    said = capsys.readouterr()
    assert "1 of 2 cases are in" in said.err
    assert "[1/1]" in said.err
    assert json.loads(said.out)["rows"][0]["key"] == first[0]["key"]
    assert rows.read_bytes().startswith(kept)
    assert len(rows.read_bytes().splitlines()) == 2


def test_another_seed_limit_or_graph_is_another_case(files):
    graph_file, _, out = files
    case = Case(read_graph(graph_file), ComparedCluster("two", cluster()), Method("heft"))
    changed = [
        replace(case, method=replace(case.method, seed=1)),
        replace(case, method=replace(case.method, time_limit_seconds=31.0)),
        replace(case, on=ComparedCluster("two", cluster(3))),
        replace(case, graph=replace(case.graph, profile_digest="other")),
    ]
    assert len({case.key, *(one.key for one in changed)}) == 5
    # Its name and where it lies do not decide.
    assert replace(case, graph=replace(case.graph, name="n", file=out)).key == case.key


def test_methods_that_mean_the_same_are_one(files):
    assert meant_method(Method("thesis-p3")) == Method("thesis-p3", "thesis")
    assert meant_method(Method("single", "pesto")) == Method("single", "none")
    twice = [Method("icc-p2"), Method("icc-p2", "icc"), Method("icc-p2", "none")]
    found = list(crossed([read_graph(files[0])], [_TWO], twice))
    assert [case.method.reduction for case in found] == ["icc", "none"]


def test_what_a_policy_leaves_out_is_another_case_and_reaches_the_engine(files):
    whole, blind = (Method("hsdag", moves=4, without=left) for left in ((), ("shape",)))
    found = [case.key for case in crossed([read_graph(files[0])], [_TWO], [whole, blind])]
    assert len(set(found)) == 2
    asked = json.loads(json.dumps(vars(blind)))
    assert settings_of(asked) == SolveSettings(
        gap=0.0,
        time_limit_seconds=30.0,
        moves=4,
        options={"solver": "auto", "sort": "auto", "without": ("shape",)},
    )


def test_a_method_decides_under_its_sharing_and_is_scored_as_all_are(files):
    case = Case(read_graph(files[0]), _TWO, Method("heft", sharing="unshaped"))
    assert case.key != replace(case, method=Method("heft")).key
    found = running.solve_case(case, files[2])
    placement = load_placement(files[2] / f"{case.key}.json.gz")
    assert placement.sharing == found.sharing == "unshaped"
    assert found.step_seconds == placement.step_seconds
    scored, _ = step_under(layered(2, 2), placement, "contended", "strict")
    assert found.contended_seconds == scored


def test_a_method_that_does_not_come_back_is_ended_and_is_a_row(files, monkeypatch):
    monkeypatch.setattr(running, "_PATIENCE", 0.0)
    monkeypatch.setattr(running, "_COMPILING_SECONDS", 0.0)
    monkeypatch.setattr(running, "_JUDGING_SECONDS", 0.05)
    case = Case(read_graph(files[0]), _TWO, Method("auto"))
    found = running.solve_case(case, files[2])
    assert found.outcome == "overran"
    assert "ended after" in found.why
    assert not found.in_time


def test_a_worker_that_breaks_is_a_row_with_its_last_words(files):
    case = Case(read_graph(files[0]), _TWO, Method("heft"))
    gone = replace(case, graph=replace(case.graph, file=files[2] / "nowhere.json"))
    found = running.solve_case(gone, files[2])
    assert found.outcome == "broken"
    assert "nowhere.json" in found.why


def test_no_room_is_infeasible_and_no_times_are_refused(files):
    graph = read_graph(files[0])
    full = ComparedCluster("full", cluster(2, (8e7,), memory=10))
    found = running.solve_case(Case(graph, full, Method("heft")), files[2])
    assert (found.outcome, found.fits, found.step_seconds) == ("infeasible", None, None)
    other = ComparedCluster("other", cluster(2, types=["tpu", "tpu"]))
    found = running.solve_case(Case(graph, other, Method("heft")), files[2])
    assert "no operator times for device type 'tpu'" in found.why


def test_rows_that_are_none_are_refused_with_their_place(tmp_path):
    path = tmp_path / "rows.jsonl"
    with RowsFile(path) as file:
        file.add(ROW)
        with pytest.raises(RowsFileError, match="another comparison is writing"), RowsFile(path):
            pass
    with RowsFile(path) as file:
        assert file.rows == {"k": ROW}
    path.write_text(ROW.model_dump_json() + "\n" + '{"key": 3}\n')
    with pytest.raises(RowsFileError, match=r"line 2: .*move the file away"), RowsFile(path):
        pass


def test_rows_stand_beside_those_of_their_graph_and_cluster():
    slow = row(key="s", engine="metis", contended_seconds=4.0, bound_seconds=1.6)
    heavy = row(key="h", engine="mcmc", contended_seconds=1.0, fits=False, model="thesis")
    none = row(key="n", engine="peft", outcome="refused", contended_seconds=None, fits=None)
    elsewhere = row(key="e", cluster="d", contended_seconds=9.0)
    first, second = rankings([ROW, slow, heavy, none, elsewhere])
    assert (first.best_seconds, first.bound_seconds) == (2.0, 1.6)
    assert [one.over_best for one in first.ranked] == [1.0, 2.0, None, None]
    assert [one.gap for one in first.ranked[:2]] == pytest.approx([0.2, 0.6])
    assert second.ranked[0].over_best == 1.0
    text = "\n".join(table_lines([ROW, slow, heavy, none, elsewhere]))
    assert text.index("heft") < text.index("metis") < text.index("peft (contended): refused")
    assert "mcmc (thesis): placed in 0.5 s, but under contended a memory is exceeded" in text
    assert csv_text([ROW, none]).splitlines()[2].startswith("n,g,3,c,peft,auto,contended,0,")
    assert table_lines([]) == ["nothing was compared"]
    assert csv_text([]) == ""


def test_long_reasons_and_names_stay_within_100_columns():
    why = "it has 5,502,112 rows, and what can be solved here ends at 400,000; " * 4
    rows = [ROW, row(key="n", engine="thesis-p2", outcome="refused", fits=None, why=why)]
    named = [row(key=f"{k}", graph="long name " * 12, seed=k) for k in (0, 2**62)]
    assert all(len(line) <= 100 for line in table_lines([*rows, *named]))


def test_when_a_search_first_knew_a_step_as_short():
    searched = row(found=((0.1, 4.0), (0.7, 2.01), (3.0, 2.0)))
    assert seconds_until(searched, 4.2) == 0.1
    assert seconds_until(searched, 2.0) == 0.7  # a tie
    assert seconds_until(searched, 1.0) is None


def test_a_programs_own_objective_stands_beside_the_contended_step(files, capsys):
    engines = "--engines", "thesis-p3", "heft"
    assert compare(files, *engines, "--solver", "cp-sat", "--gap", "0.1") == 0
    said = capsys.readouterr().out
    assert "own: the step by a program's own model" in said.replace("\n", " ")
    (head,) = [line for line in said.splitlines() if line.startswith("  engine")]
    assert head.split()[-3:] == ["own", "to", "10%"]
    assert all(len(line) <= 100 for line in said.splitlines()[:-1])
    with (files[2] / "table.csv").open() as text:
        program, heft = csv.DictReader(text)
    assert heft["own_seconds"] == heft["own_gap_of_10_percent_seconds"] == ""
    own, bound = float(program["own_seconds"]), float(program["own_bound_seconds"])
    assert 0 < bound <= own
    assert float(program["own_gap"]) == pytest.approx(1 - bound / own)
    assert float(program["own_gap"]) <= 0.1
    reached = float(program["own_gap_of_10_percent_seconds"])
    assert 0 < reached <= float(program["search_seconds"])
    # It is the program's: its transfers never wait, and its graph is the reduced one.
    assert own != float(program["contended_seconds"])


def test_when_a_solver_was_first_so_near_to_its_own_bound():
    solved = row(own_found=((0.1, 4.0, 0.0), (0.7, 2.0, 1.0), (3.0, 2.0, 1.9)))
    assert seconds_to_gap(solved, 1.0) == 0.1
    assert seconds_to_gap(solved, 0.5) == 0.7
    assert seconds_to_gap(solved, 0.10) == 3.0
    assert seconds_to_gap(solved, 0.01) is None
    assert (solved.own_seconds, own_gap(solved)) == (2.0, pytest.approx(0.05))
    assert (ROW.own_seconds, own_gap(ROW), seconds_to_gap(ROW, 1.0)) == (None, None, None)


def test_a_placement_found_without_contention_is_scored_with_it():
    """A sends 1 s to B and C each, on the other server: side by side under `thesis`, one after the
    other where they contend."""
    size = 1_000_000
    fork = graph(
        {"A": 1.0, "B": 3.0, "C": 3.0, "D": 5.0},
        [("A", ["B"], size), ("A", ["C"], size), ("A", ["D"], 0)],
    )
    problem = Problem(fork, cluster(), model="thesis")
    free = place(problem, "heft", SolveSettings())
    seconds, fits = step_under(fork, free, "contended", "strict")
    assert fits
    assert seconds >= free.step_seconds
    again, _ = step_under(fork, free, "thesis", "strict")
    assert again == pytest.approx(free.step_seconds)
    contended = place(Problem(fork, cluster()), "heft", SolveSettings())
    assert step_under(fork, contended, "contended", "strict")[0] <= contended.step_seconds + 1e-12
    assert np.isfinite(seconds)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--servers", "2"], "another cluster than --cluster does"),
        (["--engines", "best"], "invalid choice: 'best'"),
        (["--seeds", "-1"], "-1 is not a whole number"),
    ],
)
def test_usage_is_refused_before_anything_is_written(files, capsys, extra, said):
    with pytest.raises(SystemExit) as ended:
        compare(files, *extra)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not files[2].exists()


def test_twins_and_missing_files_are_bad_input(files, capsys, tmp_path):
    graph_file, cluster_file, out = files
    twin = tmp_path / "other"
    twin.mkdir()
    save_graph(layered(2, 2), twin / "small.json")
    both = [str(graph_file), str(twin / "small.json")]
    common = ["--cluster", str(cluster_file), "--out", str(out)]
    assert main(["compare", *both, *common]) == 3
    assert "two graphs are called 'small'" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "none.json"), *common]) == 3
    assert "none.json: No such file" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(("mcmc", "thesis"), marks=pytest.mark.thorough),
        pytest.param(("icc-p2", "thesis"), marks=pytest.mark.thorough),
        ("auto", "contended"),
        ("thesis",),
    ],
)
def test_nothing_is_compiled_while_the_clock_runs(asked):
    """Else the first method of a run, or the first reduction, would pay for those after it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.optimizer.published.compiled_in_time", *asked],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
