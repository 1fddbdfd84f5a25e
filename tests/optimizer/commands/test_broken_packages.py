"""A method of another package that cannot be loaded: it is named, and all other methods work."""

from __future__ import annotations

import itertools
import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.engines.engine import ENGINES, Engine
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.importer import IMPORTERS
from placewire.optimizer.registry import BrokenMethodError, Registry
from tests.optimizer.cases import cluster, graph

WAYS = {
    "syntax": ("def (", "SyntaxError"),
    "raises": ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "file": ("open('/nowhere')", "FileNotFoundError"),
    "empty": ("", "no attribute 'MINE'"),
    "kind": ("MINE = 1", "is int (other_"),
}
numbers = itertools.count()


@pytest.fixture(params=WAYS)
def broken(request, tmp_path, monkeypatch):
    """An entry point of a package that breaks when it is imported, and what is said about it."""
    body, said = WAYS[request.param]
    name = f"other_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)

    def register(registry: Registry) -> str:
        entry = EntryPoint("mine", f"{name}:MINE", "placewire.any")
        monkeypatch.setitem(vars(registry), "_entries", {**registry._entries, "mine": entry})
        return said

    return register


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    save_graph(graph({"A": 0.1}, []), tmp_path / "graph.json")
    (tmp_path / "cluster.json").write_text(cluster(1).model_dump_json())
    return tuple(str(tmp_path / name) for name in ("graph.json", "cluster.json", "out.json"))


def test_loading_it_says_whose_it_is_and_what_it_raised(broken):
    said = broken(ENGINES)
    with pytest.raises(BrokenMethodError, match="engine 'mine' of an unnamed package") as caught:
        ENGINES.load("mine")
    assert said in str(caught.value)


def test_import_goes_on_and_its_help_says_which_format_is_broken(broken, files, capsys):
    said = broken(IMPORTERS)
    with pytest.raises(SystemExit) as ended:
        main(["import", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "mine: broken, " in told and said.split()[0] in told and "thesis: " in told
    given, _, out = files
    Path(given).write_text(json.dumps({"nodes": [], "links": []}))
    assert main(["import", "--format", "thesis", given, "--out", out]) == 0
    assert main(["import", "--format", "mine", given, "--out", out]) == 3
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["import", "--format", "thesis", given, "--out", out, "--unheard"])


def test_solve_goes_on_and_the_list_says_which_engine_is_broken(broken, files, capsys):
    said = broken(ENGINES)
    given, on, out = files
    assert main(["solve", given, "--cluster", on, "--engine", "single", "--out", out]) == 0
    assert main(["solve", given, "--cluster", on, "--engine", "mine", "--out", out]) == 3
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["solve", given, "--cluster", on, "--engine", "single", "--unheard"])
    capsys.readouterr()
    assert main(["engines"]) == 0
    told = capsys.readouterr().out
    assert "\nmine " in told and said in told and "\nheft " in told
    assert main(["engines", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["methods"]}
    assert said in rows["mine"]["broken"] and "broken" not in rows["heft"]


def test_a_solution_that_breaks_a_rule_is_refused_by_the_rules_name(files, capsys, monkeypatch):
    given, on, out = files
    save_graph(graph({"A": 0.1, "B": 0.1}, [], colocation={"A": "k", "B": "k"}), Path(given))
    Path(on).write_text(cluster(2).model_dump_json())
    torn = ENGINES.load("single")

    def solve(problem, settings, progress=None):
        found = torn.solve(problem, settings, progress)
        found.device[:] = [0, 1]
        return found

    monkeypatch.setattr(ENGINES, "load", lambda name: Engine("torn", solve, reduction="none"))
    monkeypatch.setitem(
        vars(ENGINES),
        "_entries",
        {**ENGINES._entries, "torn": EntryPoint("torn", "torn:TORN", "any")},
    )
    assert main(["solve", given, "--cluster", on, "--engine", "torn", "--out", out]) == 3
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: engine torn broke a rule: ") and "co-location" in said
    assert not Path(out).exists()
