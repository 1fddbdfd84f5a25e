"""The `optimizer` command as people call it: files in, files out, exit codes, one clear message."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from cases import cluster
from optimizer.cli import main
from optimizer.graph import save_graph
from optimizer.placement import load_placement, save_placement
from test_engines import layered


@pytest.fixture
def files(tmp_path):
    graph_file, cluster_file = tmp_path / "graph.json.gz", tmp_path / "cluster.json"
    save_graph(layered(2, 2), graph_file)
    cluster_file.write_text(cluster(2, (8e7, 8e7)).model_dump_json())
    return graph_file, cluster_file, tmp_path / "placement.json"


def solve(files, *extra):
    graph_file, cluster_file, out = (str(f) for f in files)
    return main(
        ["solve", graph_file, "--cluster", cluster_file, "--moves", "600", "--out", out, *extra]
    )


def test_solve_check_show(files, capsys):
    assert solve(files) == 0
    text = capsys.readouterr().out
    assert "times as fast as one device" in text
    assert "s1/0" in text
    assert "#" in text
    graph_file, _, out = (str(f) for f in files)
    assert main(["check", graph_file, out]) == 0
    assert "holds" in capsys.readouterr().out
    assert main(["show", out, "--graph", graph_file]) == 0
    assert main(["show", out]) == 0
    assert main(["show", graph_file]) == 0
    assert all(len(line) <= 100 for line in (text + capsys.readouterr().out).splitlines())


def test_json_is_the_placement_and_nothing_else(files, capsys):
    assert solve(files, "--json", "--sharing", "unshaped", "--model", "contended") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(files[2].read_text())


def test_check_finds_a_forged_step_and_exits_4(files, capsys):
    assert solve(files) == 0
    placement = load_placement(files[2])
    save_placement(placement.model_copy(update={"step_seconds": 1e-3}), files[2])
    capsys.readouterr()
    assert main(["check", str(files[0]), str(files[2])]) == 4
    assert "step_seconds: says 0.001" in capsys.readouterr().out
    assert main(["check", str(files[0]), str(files[2]), "--json"]) == 4
    assert json.loads(capsys.readouterr().out)[0]["where"] == "step_seconds"


def complaint(capsys) -> str:
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert not any("Traceback" in line for line in lines)
    return lines[-1]


def test_infeasible_exits_4_and_says_what_is_missing(files, capsys):
    save_graph(layered(2, 2, weight=1_000_000), files[0])
    files[1].write_text(cluster(2, (8e7,), memory=1_000_000).model_dump_json())
    assert solve(files) == 4
    assert "3.8 MiB" in complaint(capsys)
    assert not files[2].exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"servers": []}, "no device"),
        ({"setup_latency_seconds": "x"}, "setup_latency_seconds"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_wrong_cluster_exits_3_naming_the_place(files, capsys, change, message):
    document = json.loads(files[1].read_text()) | change
    files[1].write_text(json.dumps(document))
    assert solve(files) == 3
    assert message in complaint(capsys)


def test_wrong_files_exit_3(files, capsys):
    assert main(["show", str(files[2])]) == 3
    assert "No such file" in complaint(capsys)
    files[2].write_text("{nonsense")
    assert main(["show", str(files[2])]) == 3
    assert "no JSON" in complaint(capsys)
    files[0].write_bytes(b"\x1f\x8bbroken")
    assert solve(files) == 3
    complaint(capsys)


def test_usage_exits_2(files):
    for wrong in (
        ["--time-limit", "-1"],
        ["--gap", "7"],
        ["--sharing", "magic"],
        ["--seed", "-3"],
        ["--engine", "magic"],
    ):
        with pytest.raises(SystemExit) as stopped:
            solve(files, *wrong)
        assert stopped.value.code == 2


def test_help_is_fast_and_loads_no_heavy_library():
    began = time.monotonic()
    command = (
        "import sys; from optimizer.cli import main\ntry: main(['--help'])\nfinally: "
        "print(sorted(m for m in ('torch', 'numba', 'scipy', 'numpy') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=False
    )
    assert "solve" in done.stdout
    assert done.stdout.rstrip().endswith("[]")
    assert time.monotonic() - began < 2.0
