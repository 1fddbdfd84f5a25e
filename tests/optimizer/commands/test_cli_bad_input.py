"""What people get wrong, or bring at the edge of what makes sense: a sentence or a right answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.cluster import Cluster, Nic
from placewire.optimizer.graph.graph_file import graph_to_json, save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement, load_placement
from tests.optimizer.cases import cluster, layered
from tests.optimizer.cases import graph as small_graph


class Desk:
    """A folder with a graph and a cluster, and the command run on them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.graph, self.cluster = folder / "graph.json", folder / "cluster.json"
        self.out = folder / "placement.json"
        self.put(small_graph({"A": 0.5, "B": 0.5}, [("A", ["B"], 1000)]), cluster(2))

    def put(self, graph: OperatorGraph, on: Cluster) -> None:
        save_graph(graph, self.graph)
        self.cluster.write_text(on.model_dump_json())

    def change(self, **change: Any) -> None:
        """Keys of the graph file replaced; its hash dropped, as one does by hand."""
        document = json.loads(self.graph.read_text())
        del document["structure_hash"]
        self.graph.write_text(json.dumps({**document, **change}))

    def solve(self, *more: str) -> int:
        where = ["--cluster", str(self.cluster), "--out", str(self.out)]
        return main(["solve", str(self.graph), *where, "--moves", "300", *more])

    def complaint(self) -> str:
        said = self.capsys.readouterr().err.strip().splitlines()
        assert said[-1].startswith("error: ") and "Traceback" not in "".join(said)
        return said[-1]

    def placement(self) -> Placement:
        """The one that was written, which `check` accepts."""
        assert main(["check", str(self.graph), str(self.out)]) == 0
        self.capsys.readouterr()
        return load_placement(self.out)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


TIMED = {"type": "op", "seconds": {"cpu": 1.0}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tensors": [
                {"producer": "A", "consumers": ["B"], "bytes": 1},
                {"producer": "B", "consumers": ["A"], "bytes": 1},
            ]},
            "the graph has a cycle; 2 operators are on or behind it, among them 'A'",
        ),
        (
            {"operators": [{"id": "A", **TIMED}, {"id": "B", **TIMED, "seconds": {"cpu": -1}}]},
            "operators[1]: seconds.cpu is -1, expected a number from 0",
        ),
        (
            {"tensors": [{"producer": "A", "consumers": ["Z"], "bytes": 1}]},
            "tensors[0] names 'Z', which is no operator",
        ),
        ({"operators": [{"id": i, **TIMED} for i in "ABA"]}, "operator id 'A' occurs twice"),
        ({"tensors": [{"producer": "A", "consumers": ["B"], "bytes": -4}]}, "bytes is -4"),
        ({"operators": [{"id": "A", **TIMED, "weight_bytes": -1}]}, "weight_bytes is -1"),
    ],
)  # fmt: skip
def test_a_wrong_graph_exits_3_naming_file_and_place(
    desk: Desk, change: dict[str, Any], message: str
) -> None:
    desk.change(**change)
    assert desk.solve() == 3
    said = desk.complaint()
    assert f"{desk.graph}: " in said and message in said
    assert not desk.out.exists()


def test_a_graph_changed_by_hand_is_noticed(desk: Desk) -> None:
    document = graph_to_json(small_graph({"A": 0.5, "B": 0.5}, [("A", ["B"], 1000)]))
    document["tensors"][0]["bytes"] = 5
    desk.graph.write_text(json.dumps(document))
    assert desk.solve() == 3
    assert "the file was changed by hand; drop the key if that was intended" in desk.complaint()


def test_an_unknown_operator_in_a_placement_is_a_violation(desk: Desk) -> None:
    assert desk.solve() == 0
    document = json.loads(desk.out.read_text())
    document["operators"]["Z"] = "s1/0"
    document["order"]["s1/0"].append("Z")
    desk.out.write_text(json.dumps(document))
    assert main(["check", str(desk.graph), str(desk.out)]) == 4
    assert "operators.Z: is no operator of the graph" in desk.capsys.readouterr().out
    for command in (["explain", str(desk.out), "--graph"], ["show", str(desk.out), "--graph"]):
        assert main([*command, str(desk.graph)]) == 3
        assert "does not hold" in desk.complaint()


def test_an_operator_larger_than_every_device_exits_4(desk: Desk) -> None:
    work = small_graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 8)], weight_bytes={"B": 5000})
    desk.put(work, cluster(3, memory=4000))
    assert desk.solve() == 4
    assert "'B'" in desk.complaint()


def test_disconnected_parts_are_all_placed(desk: Desk) -> None:
    work = small_graph(dict.fromkeys("ABCDEF", 1.0), [("A", ["B"], 10), ("C", ["D"], 10)])
    desk.put(work, cluster(3))
    assert desk.solve() == 0
    placement = desk.placement()
    assert set(placement.operators) == set("ABCDEF")
    assert placement.step_seconds == pytest.approx(2.0)


def test_no_operators_is_a_step_of_no_time(desk: Desk) -> None:
    desk.change(operators=[], tensors=[], device_types=["cpu"])
    assert desk.solve() == 0
    placement = desk.placement()
    assert placement.step_seconds == 0 and not placement.operators
    assert main(["explain", str(desk.out), "--graph", str(desk.graph)]) == 0
    assert "the step takes no time" in desk.capsys.readouterr().out


def test_one_device_runs_everything(desk: Desk) -> None:
    desk.put(layered(2, 2), cluster(1))
    assert desk.solve() == 0
    assert "do not distribute this" in desk.capsys.readouterr().out
    placement = desk.placement()
    assert placement.gap == pytest.approx(0.0, abs=1e-6)
    assert set(placement.operators.values()) == {"s1/0"}


def test_unequal_rails_are_kept_each(desk: Desk) -> None:
    """The sums of 100 + 10 and 10 + 100 Mbit/s fit 110; what the rails carry is 20."""
    servers = cluster(2).servers
    on = Cluster(
        servers=tuple(
            server.model_copy(
                update={
                    "nics": tuple(
                        Nic(rail=rail, rate_bits_per_second=rate)
                        for rail, rate in zip("ab", rates, strict=True)
                    )
                }
            )
            for server, rates in zip(servers, ((1e8, 1e7), (1e7, 1e8)), strict=True)
        ),
        setup_latency_seconds=0.0,
        intra_server_bits_per_second=1e9,
    )
    # Too large for one server together, so that a megabyte must travel.
    work = small_graph(
        {"A": 0.01, "B": 0.01}, [("A", ["B"], 10**6)], weight_bytes={"A": 10**10, "B": 10**10}
    )
    desk.put(work, on.model_copy(update={"servers": _memory(on, 15 * 10**9)}))
    assert desk.solve() == 0
    placement = desk.placement()
    rates = [rate for *_, rate in placement.rates_bits_per_second]
    assert max(rates) <= 1e7
    assert placement.step_seconds >= 0.02 + 8e6 / 2e7


def _memory(on: Cluster, count: int) -> tuple[Any, ...]:
    return tuple(
        server.model_copy(
            update={
                "devices": tuple(
                    device.model_copy(update={"memory_bytes": count}) for device in server.devices
                )
            }
        )
        for server in on.servers
    )


SHORT = ["--servers", "2", "--nics", "2", "--rate", "80Mbit", "--device-memory", "1GiB"]


def test_equal_servers_in_a_few_words(desk: Desk) -> None:
    command = ["solve", str(desk.graph), *SHORT, "--moves", "50", "--setup-latency", "1ms"]
    assert main([*command, "--out", str(desk.out)]) == 0
    found = desk.placement().cluster
    assert [server.name for server in found.servers] == ["s1", "s2"]
    assert found.nic_rates.tolist() == [[8e7, 8e7], [8e7, 8e7]]
    assert found.memory_bytes.tolist() == [2**30, 2**30]
    assert found.devices[0].type == "cpu" and found.setup_latency_seconds == pytest.approx(1e-3)
    # A placement has a cluster, too: what was solved once can be solved for again.
    again = ["solve", str(desk.graph), "--cluster", str(desk.out), "--engine", "heft"]
    assert main(again) == 0
    assert "written to" not in desk.capsys.readouterr().out


def test_the_device_type_is_chosen_where_there_are_several(desk: Desk) -> None:
    document = json.loads(desk.graph.read_text())
    operators = [{**row, "seconds": {"cpu": 1.0, "t4": 0.1}} for row in document["operators"]]
    desk.change(operators=operators, device_types=["cpu", "t4"])
    command = ["solve", str(desk.graph), *SHORT, "--moves", "50"]
    assert main(command) == 3
    assert "times for cpu, t4; choose one with --device-type" in desk.complaint()
    assert main([*command, "--device-type", "t4", "--out", str(desk.out)]) == 0
    assert desk.placement().step_seconds == pytest.approx(0.2)
    assert main([*command, "--device-type", "v100"]) == 4
    assert "no operator times for device type 'v100'" in desk.complaint()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --cluster FILE, or describe equal servers; missing: --servers, --nics"),
        (SHORT[:6], "missing: --device-memory"),
        (["--servers", "1000000000", *SHORT[2:]], "--servers is at most 2000, as in a plan"),
        (["--cluster", "c", *SHORT], "--servers describes another cluster than --cluster does"),
        (["--cluster", "c", "--device-type", "t4"], "--device-type describes another cluster"),
        ([*SHORT[:5], "80", *SHORT[6:]], "'80' has no unit; accepted: bit, kbit, mbit"),
        ([*SHORT[:5], "0bit", *SHORT[6:]], "0bit must be more than 0"),
        ([*SHORT, "--setup-latency", "fast"], "'fast' is not a quantity"),
        ([*SHORT, "--backend", "mpi"], "invalid choice: 'mpi'"),
        ([*SHORT, "--time-limit", "soon"], "soon is not a positive number of seconds"),
    ],
)
def test_half_a_cluster_exits_2(desk: Desk, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["solve", str(desk.graph), *arguments])
    assert stopped.value.code == 2
    assert message in desk.capsys.readouterr().err


def test_a_time_limit_may_have_a_unit(desk: Desk) -> None:
    assert desk.solve("--time-limit", "2min") == 0
    assert desk.solve("--time-limit", "500ms") == 0
