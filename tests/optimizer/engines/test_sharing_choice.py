"""The best sharing: each is searched under itself, and the shortest step is taken."""

from __future__ import annotations

from typing import get_args

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.engines.best_sharing import place_under_best_sharing
from placewire.optimizer.engines.solution import TIE
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.names import SharingName
from placewire.optimizer.placement import load_placement
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from tests.optimizer.cases import cluster, graph, layered

SETTINGS = SolveSettings(gap=0.0, moves=400)


def test_the_shortest_step_of_all_is_taken_but_for_ties() -> None:
    problem = Problem(layered(3, 2), cluster(3, (8e7, 8e7)))
    best, considered = place_under_best_sharing(problem, get_args(SharingName), "auto", SETTINGS)
    assert [one.sharing for one in considered] == list(get_args(SharingName))
    assert best.step_seconds <= min(one.step_seconds for one in considered) * (1 + TIE)
    assert best in considered


def test_a_tie_is_the_first_named() -> None:
    problem = Problem(graph({"A": 1.0, "B": 1.0}, []), cluster(2))
    for order in (("unshaped", "strict"), ("strict", "unshaped")):
        best, considered = place_under_best_sharing(problem, order, "heft", SETTINGS)
        assert len({one.step_seconds for one in considered}) == 1
        assert best.sharing == order[0]


def test_nowhere_feasible_is_said_once() -> None:
    work = graph({"A": 1.0}, [], weight_bytes={"A": 10**6})
    problem = Problem(work, cluster(2, memory=1000))
    with pytest.raises(InfeasibleError, match="add devices or memory"):
        place_under_best_sharing(problem, get_args(SharingName), "auto", SETTINGS)
    with pytest.raises(ValueError, match="at least one sharing"):
        place_under_best_sharing(problem, (), "auto", SETTINGS)


def test_the_command_shows_them_all_and_writes_the_best(tmp_path, capsys) -> None:
    save_graph(layered(3, 2), tmp_path / "g.json")
    (tmp_path / "c.json").write_text(cluster(3, (8e7, 8e7)).model_dump_json())
    out = tmp_path / "p.json"
    where = ["--cluster", str(tmp_path / "c.json"), "--out", str(out), "--moves", "400"]
    assert main(["solve", str(tmp_path / "g.json"), *where, "--sharing", "auto"]) == 0
    said = capsys.readouterr().out
    table = said[said.index("sharings, each") :].splitlines()[1:6]
    assert {line.split()[0] for line in table} == set(get_args(SharingName))
    taken = [line.split()[0] for line in table if line.endswith(", taken")]
    assert taken == [load_placement(out).sharing]
    assert main(["check", str(tmp_path / "g.json"), str(out)]) == 0
