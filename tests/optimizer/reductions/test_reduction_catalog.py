"""`optimizer reductions`: every name with its paper, and none loaded before it is asked for."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.reductions.reduction import REDUCTIONS
from tests.optimizer.cases import cluster, graph
from tests.paths import ROOT

NAMES = REDUCTIONS.names
OWN = ("auto", "none", "chain", "fusion")


def test_every_name_loads():
    assert set(OWN) < set(NAMES)
    for name in NAMES:
        reduction = REDUCTIONS.load(name)
        assert bool(reduction.section) == bool(reduction.paper) == (name not in OWN)
        room = reduction.reduce.__module__
        assert (".published." in room) == (name not in OWN), "published ones have their room"
        assert next(iter(inspect.signature(reduction.reduce).parameters)) == "problem"


def test_the_list_names_paper_section_and_what_each_takes(capsys):
    assert main(["reductions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(NAMES)
    assert f"{'':20}from: Duan et al., HSDAG (2024), appendix G" in lines
    assert main(["reductions", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["methods"]
    assert [row["name"] for row in rows] == list(NAMES)
    assert {tuple(row) for row in rows} == {("name", "package", "summary", "paper", "section")}


def test_the_documents_name_them_all():
    text = (ROOT / "docs" / "design" / "reductions.md").read_text()
    assert not [name for name in NAMES if f"\n| `{name}` |" not in text]


@pytest.mark.parametrize("name", ["spotlight", "gcof-eigen"])
def test_what_a_reduction_cannot_take_is_refused_before_the_search(name, tmp_path, capsys):
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 8)])
    save_graph(made, tmp_path / "graph.json")
    (tmp_path / "cluster.json").write_text(cluster(2).model_dump_json())
    files = [str(tmp_path / "graph.json"), "--cluster", str(tmp_path / "cluster.json")]
    assert main(["solve", *files, "--reduction", name]) == 3
    assert "; it takes graphs " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("none", []),
        ("chain", []),
        ("auto", []),
        ("colocrl", ["colocrl", "shared", "shared.groups"]),
    ],
)
def test_a_reduction_loads_itself_alone(name: str, loaded: list[str]) -> None:
    program = (
        "import sys\n"
        "from placewire.optimizer.cluster import Cluster, Device, Server\n"
        "from placewire.optimizer.graph.operator_graph import OperatorRow, build_graph\n"
        "from placewire.optimizer.problem import Problem\n"
        "from placewire.optimizer.reductions.chain import reduce_by_name\n"
        "one = Server(name='s', devices=(Device(type='cpu', memory_bytes=9),), nics=())\n"
        "where = Cluster(servers=(one,), setup_latency_seconds=0,"
        " intra_server_bits_per_second=1.0)\n"
        "made = build_graph([OperatorRow('A', 'op', {'cpu': 1.0})], [])\n"
        f"reduce_by_name(Problem(made, where), {name!r})\n"
        "room = 'placewire.optimizer.published.reductions.'\n"
        "print(sorted(m[len(room):] for m in sys.modules if m.startswith(room)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(loaded)
