"""`optimizer advise`: the table, the advice, the exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.commands.advise import advice_on
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.peer import PeerStep
from placewire.optimizer.placement import load_placement
from tests.optimizer.cases import cluster
from tests.optimizer.peers.steps import captured, chain, gpus

PEERS = {"ddp", "fsdp", "gpipe", "1f1b", "interleaved-1f1b"}
FAST, SLOW = 1e17, 8e4


def advise(folder: Path, graphs: list[OperatorGraph], servers: Cluster, *more: str) -> int:
    files = [str(folder / f"g{k}.json.gz") for k in range(len(graphs))]
    for file, graph in zip(files, graphs, strict=True):
        save_graph(graph, Path(file))
    where = folder / "cluster.json"
    where.write_text(servers.model_dump_json())
    return main(["advise", *files, "--cluster", str(where), "--time-limit", "1", *more])


def answer(capsys) -> dict:
    document = json.loads(capsys.readouterr().out)
    document["rows"] = {row["name"]: row for row in document["rows"]}
    return document


def quick_updates(graph: OperatorGraph) -> OperatorGraph:
    """What a single device's update takes is what data parallelism cannot share."""
    seconds = graph.seconds.copy()
    seconds[[kind == "update" for kind in graph.types]] = 1e-6
    return graph.with_seconds({"cpu": seconds[:, 0], "fast": seconds[:, 1]})


def test_the_table_has_every_way_and_fits_a_terminal(tmp_path, capsys) -> None:
    graphs = [captured("gpt2", count) for count in (1, 4)]
    assert advise(tmp_path, graphs, gpus(4)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    rows = lines[1 : lines.index("")]
    names = {line[:17].strip() for line in rows}
    assert names == {"placewire", "one device", *PEERS}
    assert lines[0].split() == ["step", "samples/s", "memory", "NIC", "sends", "spent", "on", "how"]
    assert any(line.endswith("4 replicas") for line in rows)
    assert lines[-2].startswith("placewire is here ")
    assert lines[-1].startswith("no placement of these variants can be below ")


def test_a_long_name_of_a_variant_is_cut(tmp_path, capsys) -> None:
    """Graphs of others say nothing of micro-batches, and are named by their files."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    graphs = [replace(chain(count), notes={}) for count in (1, 2)]
    assert advise(folder, graphs, cluster(2)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 100 for line in lines) and any(line.endswith("…") for line in lines)


def test_json_is_the_table_and_the_advice_and_nothing_else(tmp_path, capsys) -> None:
    assert advise(tmp_path, [chain(1), chain(4)], cluster(4), "--json") == 0
    found = answer(capsys)
    assert set(found) == {"version", "rows", "bound_seconds", "advice", "spread"}
    assert set(found["rows"]) == {"placewire", "one device", *PEERS}
    steps = {name: row["step_seconds"] for name, row in found["rows"].items()}
    assert list(steps.values()) == sorted(steps.values())
    assert 0 < found["bound_seconds"] <= steps["placewire"] <= steps["one device"]
    assert found["rows"]["one device"]["sent_bytes"] == 0


def test_on_a_slow_network_the_advice_is_not_to_distribute(tmp_path, capsys) -> None:
    assert advise(tmp_path, [chain(4)], cluster(4, (SLOW,)), "--json") == 0
    found = answer(capsys)
    assert found["advice"].startswith("do not distribute this step: one device takes 2")
    rows = found["rows"]
    assert rows["placewire"]["step_seconds"] == pytest.approx(rows["one device"]["step_seconds"])
    assert rows["ddp"]["step_seconds"] > 10 * rows["one device"]["step_seconds"]


def test_ddp_is_taken_where_it_is_as_good(tmp_path, capsys) -> None:
    assert advise(tmp_path, [quick_updates(chain(4))], cluster(4, (FAST,)), "--json") == 0
    found = answer(capsys)
    assert found["advice"].startswith("ddp is as good as anything here, 4.0")
    assert found["advice"].endswith(" times as fast as one device: take it")


def test_ours_is_never_worse_than_one_device(tmp_path, capsys) -> None:
    for rate in (8e6, 8e7, 8e8):
        assert advise(tmp_path, [chain(1), chain(2)], cluster(2, (rate,)), "--json") == 0
        rows = answer(capsys)["rows"]
        assert rows["placewire"]["step_seconds"] <= rows["one device"]["step_seconds"] * (1 + 1e-9)


def test_a_graph_without_micro_batches_has_no_peers(tmp_path, capsys) -> None:
    assert advise(tmp_path, [chain(1)], cluster(2)) == 0
    said = capsys.readouterr()
    assert "ddp and fsdp are left out" in said.err and "pipelines are left out" in said.err
    assert [line.split()[0] for line in said.out.splitlines()[1:3]] == ["placewire", "one"]


def test_a_step_without_times_has_no_rate(tmp_path, capsys) -> None:
    nothing = 0 * chain(1).seconds[:, 0]
    graph = chain(1).with_seconds({"cpu": nothing})
    assert advise(tmp_path, [graph], cluster(2)) == 0
    assert "do not distribute" in capsys.readouterr().out


def test_the_placement_can_be_written_and_checked(tmp_path, capsys) -> None:
    out = tmp_path / "placement.json"
    assert advise(tmp_path, [chain(1), chain(2)], cluster(2, (FAST,)), "--out", str(out)) == 0
    assert f"written to {out}" in capsys.readouterr().out
    taken = load_placement(out).structure_hash
    files = [tmp_path / f"g{k}.json.gz" for k in range(2)]
    (file,) = [one for one in files if load_graph(one).structure_hash == taken]
    every = ["--variants", *map(str, files)]
    assert main(["check", str(file), str(out), *every]) == 0
    assert main(["check", str(file), str(out), "--variants", str(file)]) == 4
    assert "no graph was given that is" in capsys.readouterr().out


def test_the_bound_that_is_told_is_the_least_of_the_variants(tmp_path, capsys) -> None:
    out = tmp_path / "placement.json"
    graphs = [chain(1), chain(2), chain(4)]
    assert advise(tmp_path, graphs, cluster(2, (FAST,)), "--json", "--out", str(out)) == 0
    bounds = {one.name: one.bound_seconds for one in load_placement(out).variants}
    assert len(bounds) == 3 and len(set(bounds.values())) > 1
    assert answer(capsys)["bound_seconds"] == min(bounds.values())


def test_a_graph_is_not_replaced_by_the_placement(tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        advise(tmp_path, [chain(1)], cluster(2), "--out", str(tmp_path / "g0.json.gz"))
    assert ended.value.code == 2
    assert "is the file" in capsys.readouterr().err
    assert load_graph(tmp_path / "g0.json.gz").operator_count == chain(1).operator_count


def test_usage_exits_2(tmp_path, capsys) -> None:
    file = tmp_path / "g.json"
    save_graph(chain(1), file)
    for wrong in ([], ["--cluster", "c.json", "--servers", "2"], ["--time-limit", "-1"]):
        with pytest.raises(SystemExit) as ended:
            main(["advise", str(file), *wrong])
        assert ended.value.code == 2


def test_bad_files_exit_3_and_name_the_file(tmp_path, capsys) -> None:
    where = tmp_path / "cluster.json"
    where.write_text(cluster(2).model_dump_json())
    assert main(["advise", str(tmp_path / "none.json"), "--cluster", str(where)]) == 3
    assert "none.json" in capsys.readouterr().err
    other = replace(chain(2), notes={**chain(2).notes, "batch": 17})
    assert advise(tmp_path, [chain(1), other], cluster(2)) == 3
    assert "no variants of one step: batch is 16 and 17" in capsys.readouterr().err


def test_what_fits_nowhere_exits_4(tmp_path, capsys) -> None:
    assert advise(tmp_path, [chain(2)], cluster(2, memory=1000)) == 4
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert advise(tmp_path, [chain(2)], cluster(2, types=["gpu", "gpu"])) == 4
    assert "device type 'gpu'" in capsys.readouterr().err


def test_where_only_a_peer_fits_it_is_advised(tmp_path, capsys) -> None:
    """One weight, which with its optimizer's state is larger than any memory: fsdp cuts it."""
    whole = chain(4, layers=1)
    graph = replace(whole, weight_bytes=4 * whole.weight_bytes)
    out, servers = tmp_path / "placement.json", cluster(4, memory=450_000)
    assert advise(tmp_path, [graph], servers, "--out", str(out)) == 0
    said = capsys.readouterr()
    assert "placewire and one device are left out: " in said.err
    assert "fsdp is as good as anything here: take it" in said.out
    assert "nothing is written" in said.out and not out.exists()
    assert advise(tmp_path, [graph], servers, "--json") == 0
    assert json.loads(capsys.readouterr().out)["bound_seconds"] is None


def row(name: str, seconds: float) -> PeerStep:
    return PeerStep(name, "", seconds, 1, 1.0, "")


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"placewire": 1.0, "one device": 1.019}, "do not distribute this step: one device takes"),
        ({"placewire": 1.0, "one device": 1.03}, "take placewire: 1.000 s, 1.03 times as fast as"),
        ({"placewire": 1.0, "fsdp": 1.01, "ddp": 1.015}, "ddp is as good as anything here: take"),
        ({"fsdp": 1.0, "ddp": 1.03, "one device": 2.0}, "fsdp is as good as anything here, 2.00 t"),
        ({"1f1b": 1.0, "placewire": 1.5}, "take 1f1b: 1.000 s; placewire takes 1.500 s"),
    ],
)
def test_of_ways_within_two_percent_the_simplest_is_advised(steps, words) -> None:
    assert advice_on([row(*one) for one in steps.items()]).startswith(words)
