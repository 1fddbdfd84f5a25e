"""The `optimizer` command as people call it: files in, files out, exit codes, one clear message."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from placewire.optimizer.cli import COMMANDS, main
from placewire.optimizer.commands.arguments import output_file
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.placement import load_placement, save_placement
from tests.optimizer.cases import cluster, layered


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
    assert json.loads(capsys.readouterr().out)["violations"][0]["where"] == "step_seconds"


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


NIC = {"rail": "a", "rate_bits_per_second": 8e7}


def rated(rate):
    return NIC | {"rate_bits_per_second": rate}


def sized(memory):
    return {"type": "cpu", "memory_bytes": memory}


def server(**change):
    return {"name": "s1", "devices": [sized(10**9)], "nics": [NIC]} | change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"servers": []}, "no device"),
        ({"servers": {}}, "servers: {}: expected a list"),
        ({"servers": [server(), server()]}, "two of them are called 's1'"),
        ({"servers": [server(name="")]}, "servers.0.name: '' is not a name"),
        ({"servers": [server(name="a/b")]}, "servers.0.name: 'a/b' is not a name"),
        ({"servers": [server(nics=[NIC, NIC])]}, "s1 has two NICs on one rail"),
        ({"servers": [server(nics=[NIC | {"rail": "a b"}])]}, "nics.0.rail: 'a b' is not a name"),
        ({"servers": [server(nics=[rated(0)])]}, "nics.0.rate_bits_per_second: 0: expected gre"),
        ({"servers": [server(nics=[rated(-1)])]}, "nics.0.rate_bits_per_second: -1: expected gre"),
        ({"servers": [server(nics=[rated(float("inf"))])]}, "inf: expected a finite number"),
        ({"servers": [server(nics=[rated(float("nan"))])]}, "nan: expected a finite number"),
        ({"servers": [server(nics=[rated("8e7")])]}, "'8e7': expected a number"),
        ({"servers": [server(devices=[{"type": "", "memory_bytes": 1}])]}, "devices.0.type: ''"),
        ({"servers": [server(devices=[sized(-1)])]}, "memory_bytes: -1: expected greater than 0"),
        ({"servers": [server(devices=[sized(2**70)])]}, "memory_bytes: 1180591620717411303424: ex"),
        ({"servers": [server(devices=[sized(True)])]}, "memory_bytes: True: expected a whole num"),
        ({"setup_latency_seconds": "x"}, "setup_latency_seconds: 'x': expected a number"),
        ({"setup_latency_seconds": -1}, "setup_latency_seconds: -1: expected greater than or"),
        ({"intra_server_bits_per_second": 0}, "intra_server_bits_per_second: 0: expected greater"),
        ({"intra_server_bits_per_second": -5}, "intra_server_bits_per_second: -5: expected"),
        ({"version": 2}, "version: 2: expected 1"),
        ({"extra": 1}, "extra: unknown key"),
    ],
)
def test_a_wrong_cluster_exits_3_naming_the_place(files, capsys, change, message):
    document = json.loads(files[1].read_text()) | change
    files[1].write_text(json.dumps(document))
    assert solve(files) == 3
    assert f"{files[1]}: " in (said := complaint(capsys))
    assert message in said
    assert not files[2].exists()


def test_a_cluster_file_states_its_version_or_not(files):
    document = json.loads(files[1].read_text())
    assert document.pop("version") == 1
    files[1].write_text(json.dumps(document))
    assert solve(files) == 0
    assert load_placement(files[2]).cluster.version == 1


def test_memories_near_the_largest_do_not_overflow_their_sum(files):
    document = json.loads(files[1].read_text())
    for row in document["servers"]:
        row["devices"][0]["memory_bytes"] = 2**62
    files[1].write_text(json.dumps(document))
    assert solve(files) == 0


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


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["solve", "g", "--cluster", "c", "--out", "o", "--gap", "100%"], "100% is not from 0%"),
        (["solve", "g", "--cluster", "c", "--out", "o", "--gap", "x"], "'x' is not a quantity"),
        (["solve", "g", "--cluster", "c", "--out", "o", "--seed", "x"], "x is not a whole number"),
        (["solve", "g", "--cluster", "c", "--out", "o", "--time-limit", "x"], "x is not a posit"),
        (["capture", "m:f", "--out", "o", "--batch", "0"], "0 is not a whole number of at least 1"),
        (["capture", "m:f", "--out", "o", "--batch", "1", "--seed", "-1"], "of at least 0"),
        (["profile", "m:f", "--out", "o", "--batch", "1", "--samples", "0"], "of at least 1"),
        (["profile", "m:f", "--out", "o", "--batch", "1", "--threads", "-2"], "of at least 1"),
    ],
)
def test_a_wrong_argument_says_what_it_accepts(command, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: optimizer {command[0]} ")
    assert message in said


def test_a_gap_may_be_a_percentage(files):
    assert solve(files, "--gap", "25%") == 0
    assert solve(files, "--gap", "0.25") == 0


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_every_help_names_the_exit_codes_and_explains_every_option(command, capsys):
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    said = capsys.readouterr().out
    assert said.startswith(f"usage: {' '.join(['optimizer', *command])} ")
    assert "exit codes: 0 done, 2 usage, 3 " in said
    lines = said.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("  --"):
            explained = len(line[26:].strip()) > 3 or lines[at + 1].startswith(" " * 20)
            assert explained, f"{line!r} says nothing"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("solve GRAPH --cluster CLUSTER --out GRAPH", "--out"),
        ("solve GRAPH --cluster CLUSTER --out CLUSTER", "--out"),
        ("solve GRAPH --cluster FOLDER/strict.json --sharing auto --out-each FOLDER", "--out-each"),
        ("trace GRAPH PLACEMENT --out GRAPH", "--out"),
        ("trace GRAPH PLACEMENT --out LINK", "--out"),
        ("trace GRAPH PLACEMENT --merge RANK --out RANK", "--out"),
        ("export GRAPH --out GRAPH", "--out"),
        ("import --format node-link LINKS --out LINKS", "--out"),
        ("import --format node-link LINKS --out NEW --cluster-out NEW", "--cluster-out"),
        ("profile GRAPH --recorded RANK --out RANK", "--out"),
    ],
)
def test_a_file_that_the_command_reads_is_not_replaced(files, tmp_path, capsys, command, said):
    paths = dict(zip(("GRAPH", "CLUSTER", "PLACEMENT"), map(str, files), strict=True))
    paths |= {"FOLDER/strict.json": str(tmp_path / "strict.json"), "FOLDER": str(tmp_path)}
    paths |= {name: str(tmp_path / name) for name in ("LINK", "LINKS", "RANK", "NEW")}
    assert solve(files) == 0
    assert main(["export", paths["GRAPH"], "--out", paths["LINKS"]]) == 0
    assert main(["trace", paths["GRAPH"], paths["PLACEMENT"], "--out", paths["RANK"]]) == 0
    (tmp_path / "strict.json").write_bytes(files[1].read_bytes())
    (tmp_path / "LINK").symlink_to(files[0])
    capsys.readouterr()
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(SystemExit) as ended:
        main([paths.get(word, word) for word in command.split()])
    assert ended.value.code == 2
    assert f"error: {said} {tmp_path}" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_graph_may_get_times_in_its_place(files, tmp_path):
    graph, rank = str(files[0]), str(tmp_path / "rank0.json")
    assert solve(files) == 0
    assert main(["trace", graph, str(files[2]), "--out", rank]) == 0
    assert main(["profile", graph, "--recorded", rank, "--out", graph]) == 0


@pytest.mark.parametrize(
    "command",
    [
        "capture placewire.examples.models.mlp:training_step --batch 4 --out",
        "profile GRAPH --device a100 --out", "solve GRAPH --cluster CLUSTER --out",
        "solve GRAPH --cluster CLUSTER --engine hsdag --curve",
        "solve GRAPH --cluster CLUSTER --engine hsdag --save-policy",
        "advise GRAPH --cluster CLUSTER --out", "trace GRAPH PLACEMENT --out",
        "export GRAPH --out", "import GRAPH --format node-link --out",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("wrong", "words"), [("missing/g.png", "there is no folder"), ("", "is a folder")]
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    files, tmp_path, capsys, command, wrong, words
):
    paths = dict(zip(("GRAPH", "CLUSTER", "PLACEMENT"), map(str, files), strict=True))
    if "--curve" in command and not wrong:
        (tmp_path / "folder.png").mkdir()
        wrong = "folder.png"
    argv = [paths.get(word, word) for word in command.split()]
    with pytest.raises(SystemExit) as ended:
        main([*argv, str(tmp_path / wrong)])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_what_can_be_written_is_not_refused(tmp_path):
    """A file is replaced, so that its own mode does not matter; a stream is written into."""
    kept = tmp_path / "kept.json"
    kept.touch(0o444)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nothing.json")
    for file in (kept, tmp_path / "pipe", tmp_path / "link", "/dev/stdout", "/dev/null", "g.json"):
        assert output_file(str(file)) == Path(file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("missing/g.json", "there is no folder"), ("", "is a folder"), (".", "is a folder"),
        ("g.json/", "ends in /"), ("a" * 300, "File name too long"), ("loop", "symbolic links"),
        ("socket", "is a folder, a socket or a disk"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch, text, why):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        output_file(text)


def test_a_folder_that_only_others_write_to_is_refused():
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from placewire.optimizer.graph.named_output import why_not\n"
        "os.setuid(65534)\nprint(why_not(Path(sys.argv[1])))"
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "g.json"
        file.touch()
        file.chmod(0o666)
        Path(folder).chmod(0o555)
        command = [sys.executable, "-c", program, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "its folder cannot be written to\n", done.stderr


def test_help_loads_no_heavy_library():
    command = (
        "import sys; from placewire.optimizer.cli import main\ntry: main(['--help'])\nfinally: "
        "print(sorted(m for m in ('torch', 'numba', 'scipy', 'numpy') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=False
    )
    assert "solve" in done.stdout
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize("shown", [False, True])
def test_an_output_that_nobody_reads_is_no_traceback(shown, files) -> None:
    """shown: more than is kept for one write, so that it fails while the command runs."""
    graph_file = files[0]
    graph = layered(1, 1)
    types = [f"a device of some kind, number {k}" for k in range(200)]
    save_graph(graph.with_seconds(dict.fromkeys(types, graph.seconds[:, 0])), graph_file)
    reader, writer = os.pipe()
    os.close(reader)
    asked = ["show", str(graph_file)] if shown else ["engines"]
    command = [sys.executable, "-m", "placewire.optimizer.cli", *asked]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_no_output_at_all_is_no_traceback() -> None:
    command = [sys.executable, "-m", "placewire.optimizer.cli", "engines"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_model_in_the_working_directory_is_found_by_the_installed_command(tmp_path: Path) -> None:
    """Such a command has the folder that it lies in on its path, and not the one it runs in."""
    package = tmp_path / "own_package"
    package.mkdir()
    model = Path(__file__).parents[2] / "models" / "costly.py"
    (package / "model.py").write_text(model.read_text())
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "optimizer"
    program.write_text("import sys\nfrom placewire.optimizer.cli import main\nsys.exit(main())\n")
    words = ["capture", "own_package.model:training_step", "--batch", "4", "--out", "g.json.gz"]
    done = subprocess.run(
        [sys.executable, str(program), *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "g.json.gz").exists()
    words[1] = "other_package.model:training_step"
    done = subprocess.run(
        [sys.executable, str(program), *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 3 and "no module 'other_package' in the working" in done.stderr
