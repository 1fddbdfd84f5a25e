"""The best sharing: each is searched under itself, and the shortest step is taken."""

from __future__ import annotations

from typing import get_args

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.engines import best_sharing
from placewire.optimizer.engines.best_sharing import place_under_best_sharing
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import BrokenRuleError
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


def test_a_sharing_whose_answer_breaks_a_rule_is_told_and_left_out(monkeypatch) -> None:
    broken = {"guarantee"}

    def placed(problem, *arguments):
        if problem.sharing in broken:
            raise BrokenRuleError("engine heft broke a rule: step_seconds")
        return place(problem, *arguments)

    monkeypatch.setattr(best_sharing, "place", placed)
    problem = Problem(layered(3, 2), cluster(3, (8e7, 8e7)))
    told: list[str] = []
    best, considered = place_under_best_sharing(
        problem, get_args(SharingName), "heft", SETTINGS, tell=told.append
    )
    assert [p.sharing for p in considered] == ["strict", "job", "even", "unshaped"]
    assert best in considered
    assert told == ["sharing guarantee: engine heft broke a rule: step_seconds"]
    broken |= {*get_args(SharingName)}
    with pytest.raises(BrokenRuleError, match="step_seconds"):
        place_under_best_sharing(problem, get_args(SharingName), "heft", SETTINGS)


def test_what_was_found_is_kept_where_a_later_search_breaks_a_rule(monkeypatch) -> None:
    """Searches from another sharing's placement, and for the proof, are given starts."""
    calls: list[str] = []

    def placed(problem, engine, settings, reduction="auto", progress=None, starts=()):
        calls.append(problem.sharing)
        if starts:
            raise BrokenRuleError("engine auto broke a rule: step_seconds")
        return place(problem, engine, settings, reduction, progress)

    monkeypatch.setattr(best_sharing, "place", placed)
    problem = Problem(layered(3, 2), cluster(3, (8e7, 8e7)))
    told: list[str] = []
    quick = SolveSettings(gap=0.0, time_limit_seconds=4.0)
    best, considered = place_under_best_sharing(
        problem, ("strict", "unshaped"), "auto", quick, tell=told.append
    )
    assert best in considered and len(considered) == 2
    assert len(told) == len(calls) - 2 >= 1
