"""Steps and clusters at the edge of what micro-batches and shards can do: a clear message or a
right answer, from the commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placewire.optimizer.capture import shards
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.cli import main
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.peers.compare import peers_of
from placewire.optimizer.placement import load_placement
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.profile.modelled import with_modelled_seconds
from tests.optimizer.cases import cluster
from tests.optimizer.peers.steps import GPU, WEIGHT, chain, gpus

MLP = "placewire.examples.models.mlp:training_step"
QUICK = SolveSettings(gap=0.0, moves=200, seed=1)
LAYERS = 4


@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        (MLP, "6", "--batch 6 cannot be cut into --accumulate 4 equal micro-batches; give a"),
        ("tests.models.features:with_a_mask", "4", "make what is the same for all samples a buff"),
    ],
    ids=["a batch that does not divide", "an input that is no batch"],
)
@pytest.mark.parametrize("numbers", [["4"], ["1", "4"]], ids=["alone", "one of several"])
def test_what_cannot_be_cut_exits_3_and_says_what_to_do(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    batch: str,
    words: str,
    numbers: list[str],
) -> None:
    out = str(tmp_path / "step.json")
    asked = ["--batch", batch, "--accumulate", *numbers, "--device", GPU, "--out", out]
    assert main(["profile", model, *asked]) == 3
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ") and words in said
    # A batch that does not divide is seen before the first number, an input only with the second.
    names = [file.name for file in tmp_path.iterdir()]
    assert names == ["step.1x1.json"][: len(numbers) - 1 if model != MLP else 0]


def test_memory_that_only_shards_can_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest weight, its gradient and both averages of AdamW are larger than any device."""
    monkeypatch.setattr(shards, "LEAST_SHARD_BYTES", 256)
    files = [tmp_path / name for name in ("whole.json", "cut.json")]
    for count, file in zip((1, 4), files, strict=True):
        step = capture(MLP, 16, OptimizerChoice(), 0, shards=count)
        save_graph(with_modelled_seconds(step.operators, [GPU]), file)
    largest = 1 << 20
    where = tmp_path / "cluster.json"
    where.write_text(gpus(4, memory=int(3.9 * largest)).model_dump_json())
    out = tmp_path / "placement.json"
    words = ["--cluster", str(where), "--moves", "3000", "--out", str(out)]
    words += ["--sharing", "job", "--time-limit", "600"]
    assert main(["solve", str(files[0]), *words]) == 4
    assert "needs at least 4.0 MiB of memory on one device" in capsys.readouterr().err
    assert main(["solve", *map(str, files), *words]) == 0
    assert "1 micro-batch: operator 'update_" in capsys.readouterr().err
    assert main(["check", str(files[1]), str(out)]) == 0
    assert len(load_placement(out).devices_used) == 4


def slower(graph: OperatorGraph) -> OperatorGraph:
    """Device type `fast` takes ten times as long as `cpu` for everything."""
    seconds = graph.seconds[:, 0]
    return graph.with_seconds({"cpu": seconds, "fast": 10 * seconds})


def ours(graphs: Sequence[OperatorGraph], where: Cluster) -> float:
    return min(place(Problem(one, where, "job"), "auto", QUICK).step_seconds for one in graphs)


def test_a_device_that_is_ten_times_slower_does_not_hold_us_up_as_it_does_ddp() -> None:
    graphs = [slower(chain(parts, LAYERS)) for parts in (1, 3, 4)]
    rates = (1e11,)
    three = cluster(3, rates, types=["cpu"] * 3)
    four = cluster(4, rates, types=["cpu", "cpu", "cpu", "fast"])
    without, found = ours(graphs, three), ours(graphs, four)
    peers = {one.name: one.step_seconds for one in peers_of(graphs, four, lambda said: None)}
    assert found <= without * 1.02
    assert found <= min(peers.values()) and peers["ddp"] > 3 * found
    alone = ours(graphs, cluster(1, rates))
    assert found < 0.8 * alone


def advised(folder: Path, capsys: Any, graphs: Sequence[OperatorGraph], where: Cluster) -> Any:
    files = []
    for number, graph in enumerate(graphs):
        files.append(folder / f"g{number}.json")
        save_graph(graph, files[-1])
    (folder / "cluster.json").write_text(where.model_dump_json())
    words = ["--cluster", str(folder / "cluster.json"), "--time-limit", "2", "--json"]
    assert main(["advise", *map(str, files), *words]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    return found | {"rows": {row["name"]: row for row in found["rows"]}, "said": said.err}


def test_one_server_with_one_device_is_told_not_to_distribute(tmp_path, capsys) -> None:
    found = advised(tmp_path, capsys, [chain(1), chain(2)], cluster(1))
    assert "the cluster has one device" in found["said"]
    assert found["advice"].startswith("do not distribute this step")
    rows = found["rows"]
    assert set(rows) == {"placewire", "one device"}
    assert found["bound_seconds"] == pytest.approx(rows["placewire"]["step_seconds"])


def test_in_one_server_with_two_devices_no_nic_sends(tmp_path, capsys) -> None:
    where = cluster(1, devices=2, intra=1e11)
    found = advised(tmp_path, capsys, [chain(1), chain(2), chain(4)], where)
    rows = found["rows"]
    assert {"placewire", "ddp", "gpipe"} <= set(rows)
    assert {row["sent_bytes"] for row in rows.values()} == {0.0}
    assert rows["placewire"]["step_seconds"] < 0.7 * rows["one device"]["step_seconds"]


def test_of_unequal_nics_the_slowest_decides_for_ddp_and_not_for_us(tmp_path, capsys) -> None:
    """The third server has a tenth of the others' rate: a ring waits for it, and we do not."""
    where = cluster(3, (8e7,))
    weak = where.servers[2]
    nics = tuple(
        nic.model_copy(update={"rate_bits_per_second": nic.rate_bits_per_second / 10})
        for nic in weak.nics
    )
    servers = (*where.servers[:2], weak.model_copy(update={"nics": nics}))
    where = where.model_copy(update={"servers": servers})
    rows = advised(tmp_path, capsys, [chain(1), chain(2), chain(3)], where)["rows"]
    ring = 2 * 2 / 3 * LAYERS * WEIGHT * 8 / 8e6
    assert ring <= rows["ddp"]["step_seconds"] < 1.3 * ring
    assert rows["placewire"]["step_seconds"] <= rows["one device"]["step_seconds"] < ring
