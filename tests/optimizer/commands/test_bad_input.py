"""Input that is wrong, or right and odd: one clear message, or a right answer; never a crash."""

from __future__ import annotations

import json

import pytest

from placewire.optimizer.check.check import check
from placewire.optimizer.check.recompute.network import usable_rates
from placewire.optimizer.cli import main
from placewire.optimizer.cluster import Cluster, Nic, Server
from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.graph_file import graph_to_json, save_graph
from placewire.optimizer.graph.operator_graph import GraphError, OperatorRow, TensorRow, build_graph
from placewire.optimizer.placement import load_placement
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from tests.optimizer.cases import cluster, graph

QUICK = SolveSettings(gap=0.0, moves=400, seed=3)
ENGINES = ("auto", "heft", "single")


@pytest.fixture
def solve(tmp_path, capsys):
    """solve(graph or document, cluster, *options) -> (exit code, the error's line, placement)"""

    def run(made, where, *options):
        document = made if isinstance(made, dict) else graph_to_json(made)
        files = [tmp_path / name for name in ("graph.json", "cluster.json", "placement.json")]
        files[0].write_text(json.dumps(document))
        files[1].write_text(where if isinstance(where, str) else where.model_dump_json())
        command = ["solve", str(files[0]), "--cluster", str(files[1]), "--out", str(files[2])]
        code = main([*command, "--moves", "300", *options])
        lines = capsys.readouterr().err.strip().splitlines()
        if code == 0:
            assert main(["check", str(files[0]), str(files[2])]) == 0
            return code, "", load_placement(files[2])
        assert not files[2].exists()
        assert lines[-1].startswith("error: ")
        assert not any("Traceback" in line for line in lines)
        return code, lines[-1], None

    return run


def test_a_cyclic_graph(solve):
    rows = [OperatorRow(name, "op", {"cpu": 1.0}) for name in "ABCD"]
    tensors = [TensorRow("A", ("B",), 8), TensorRow("B", ("C",), 8), TensorRow("C", ("B",), 0)]
    with pytest.raises(GraphError, match=r"has a cycle; 2 operators .* among them 'B'"):
        build_graph(rows, tensors)
    document = graph_to_json(build_graph(rows, tensors[:2]))
    document["tensors"].append({"producer": "C", "consumers": ["B"], "bytes": 0})
    document.pop("structure_hash")
    code, said, _ = solve(document, cluster())
    assert code == 3
    assert "has a cycle; 2 operators" in said
    assert "'B'" in said


@pytest.mark.parametrize("cost", [-0.5, "fast", None, 1e300])
def test_a_cost_that_is_none(solve, cost):
    document = graph_to_json(graph({"A": 1.0, "B": 1.0}, []))
    document["operators"][1]["seconds"]["cpu"] = cost
    code, said, _ = solve(document, cluster())
    assert code == 3
    assert f"operators[1]: seconds.cpu is {cost!r}, expected a number from 0" in said


def test_a_negative_or_undefined_cost_in_the_interface():
    for cost in (-1.0, float("nan")):
        with pytest.raises(GraphError, match="operator 'B' has a negative or undefined time"):
            graph({"A": 1.0, "B": cost}, [])


def test_negative_bytes(solve):
    with pytest.raises(GraphError, match=r"tensors\[0\] of 'A' has negative bytes"):
        graph({"A": 1.0, "B": 1.0}, [("A", ["B"], -8)])
    document = graph_to_json(graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 8)]))
    document["tensors"][0]["bytes"] = -8
    code, said, _ = solve(document, cluster())
    assert code == 3
    assert "tensors[0]: bytes is -8" in said


def test_an_unknown_operator_in_a_placement(solve, tmp_path, capsys):
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 8)])
    assert solve(made, cluster())[0] == 0
    file = tmp_path / "placement.json"
    document = json.loads(file.read_text())
    home = document["operators"]["A"]
    document["operators"]["Z"] = home
    document["order"][home].append("Z")
    file.write_text(json.dumps(document))
    assert main(["check", str(tmp_path / "graph.json"), str(file)]) == 4
    assert "operators.Z: is no operator of the graph" in capsys.readouterr().out


def test_an_unknown_operator_in_a_tensor(solve):
    with pytest.raises(GraphError, match=r"tensors\[0\] names 'Z', which is no operator"):
        graph({"A": 1.0}, [("A", ["Z"], 8)])
    document = graph_to_json(graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 8)]))
    document["tensors"][0]["consumers"] = ["Z"]
    code, said, _ = solve(document, cluster())
    assert code == 3
    assert "tensors[0] names 'Z', which is no operator" in said


@pytest.mark.parametrize("column", ["weight_bytes", "activation_bytes", "workspace_bytes"])
def test_one_operator_larger_than_every_device(solve, column):
    made = graph({"A": 1.0, "giant": 1.0}, [("A", ["giant"], 8)], **{column: {"giant": 3 * 2**20}})
    where = cluster(4, memory=2**20)
    for engine in ENGINES:
        with pytest.raises(InfeasibleError, match=r"3\.0 MiB"):
            place(Problem(made, where), engine, QUICK)
    code, said, _ = solve(made, where)
    assert code == 4
    assert "'giant'" in said
    assert "needs at least 3.0 MiB of memory on one device; the largest has 1.0 MiB" in said


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "even", "unshaped"])
def test_disconnected_components_are_all_placed(engine, sharing):
    """Two chains, a pair joined by an order alone, and two operators that nothing is joined to."""
    made = graph(
        dict.fromkeys("ABCDEFGH", 1.0) | {"H": 0.0},
        [("A", ["B"], 900), ("C", ["D"], 70_000), ("E", ["F"], 0)],
    )
    problem = Problem(made, cluster(3, (8e7, 8e7), latency=1e-3), sharing)
    placement = place(problem, engine, QUICK)
    assert check(made, placement) == ()
    assert set(placement.operators) == set("ABCDEFGH")
    assert sorted(name for names in placement.order.values() for name in names) == list("ABCDEFGH")
    if engine == "auto":
        assert placement.step_seconds == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("model", ["contended", "thesis", "msr"])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_operators(engine, model):
    made = build_graph([], [], device_types=["cpu"])
    where = cluster(1 if model == "msr" else 2)
    placement = place(Problem(made, where, "strict", model), engine, QUICK)
    assert placement.operators == {}
    assert placement.messages == ()
    numbers = (placement.step_seconds, placement.bound_seconds, placement.gap)
    assert numbers == (0.0, 0.0, 0.0)
    assert check(made, placement) == ()


def test_no_operators_in_a_file(solve):
    code, _, placement = solve(build_graph([], [], device_types=["cpu"]), cluster())
    assert code == 0
    assert placement.step_seconds == 0.0


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "even", "unshaped"])
@pytest.mark.parametrize("engine", ENGINES)
def test_one_device(engine, sharing):
    made = graph({"A": 1.0, "B": 2.0, "C": 0.5}, [("A", ["B", "C"], 70_000)])
    placement = place(Problem(made, cluster(1), sharing), engine, QUICK)
    assert placement.step_seconds == placement.single_device_seconds == 3.5
    assert placement.gap == pytest.approx(0.0, abs=1e-8)
    assert placement.messages == placement.rates_bits_per_second == ()
    assert check(made, placement) == ()


def facing(*rates):
    """One server per row; its rates on rails a and b, None for no NIC there."""
    bare = cluster(len(rates))
    servers = tuple(
        Server(
            name=server.name,
            devices=server.devices,
            nics=tuple(
                Nic(rail=rail, rate_bits_per_second=rate * 1e6)
                for rail, rate in zip("ab", row, strict=True)
                if rate is not None
            ),
        )
        for server, row in zip(bare.servers, rates, strict=True)
    )
    return Cluster(
        servers=servers,
        setup_latency_seconds=0.0,
        intra_server_bits_per_second=bare.intra_server_bits_per_second,
    )


def forced_apart(size):
    """A and B weigh 90 MB each: apart, where no device has room for both."""
    weights = {"A": 90_000_000, "B": 90_000_000}
    return graph({"A": 1.0, "B": 1.0}, [("A", ["B"], size)], weight_bytes=weights)


def with_room(where, memory):
    servers = [
        server.model_copy(
            update={
                "devices": tuple(
                    device.model_copy(update={"memory_bytes": memory}) for device in server.devices
                )
            }
        )
        for server in where.servers
    ]
    return where.model_copy(update={"servers": tuple(servers)})


@pytest.mark.parametrize("model", ["contended", "thesis"])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("sharing", ["strict", "guarantee", "job", "even", "unshaped"])
def test_nics_whose_sums_fit_and_whose_rails_do_not(sharing, backend, model):
    """100 + 10 faces 10 + 100: 110 on both sides, and rail by rail 10 + 10 = 20 Mbit/s."""
    made = forced_apart(2_500_000)  # 20 Mbit: one second at 20 Mbit/s
    where = with_room(facing((100.0, 10.0), (10.0, 100.0)), 100_000_000)
    problem = Problem(made, where, sharing, model, backend)
    placement = place(problem, "auto", QUICK)
    assert len(placement.devices_used) == 2
    assert check(problem.graph, placement) == ()
    assert placement.step_seconds == pytest.approx(3.0, rel=0.02)
    assert placement.bound_seconds <= placement.step_seconds
    for s, t, rail, rate in placement.rates_bits_per_second:
        usable = usable_rates(placement)
        assert rate <= min(usable[s, rail], usable[t, rail]) * (1 + 1e-9) == 10e6 * (1 + 1e-9)
    # What a split of the sums would promise, half of 110 on each rail, is refused.
    if placement.rates_bits_per_second:
        forged = tuple((s, t, r, 55e6) for s, t, r, _ in placement.rates_bits_per_second)
        said = check(problem.graph, placement.model_copy(update={"rates_bits_per_second": forged}))
        assert any("is outside 0..10000000" in str(v) for v in said)


def test_servers_without_a_rail_in_common():
    """Nothing can be sent between them: one device where it has room, else a reason."""
    where = facing((100.0, None), (None, 100.0))
    made = forced_apart(1_000)
    for sharing in ("strict", "guarantee", "job", "even", "unshaped"):
        problem = Problem(made, where, sharing)
        placement = place(problem, "auto", QUICK)
        assert len(placement.devices_used) == 1
        assert check(made, placement) == ()
        for engine in ("auto", "heft"):
            with pytest.raises(InfeasibleError, match="common rail; give both a NIC on one rail"):
                place(Problem(made, with_room(where, 100_000_000), sharing), engine, QUICK)


def test_a_device_type_without_times(solve):
    made = graph({"A": 1.0}, [])
    where = cluster(2, types=["cpu", "gpu"])
    with pytest.raises(InfeasibleError, match="no operator times for device type 'gpu'"):
        Problem(made, where)
    code, said, _ = solve(made, where)
    assert code == 4
    assert "no operator times for device type 'gpu'" in said


def test_a_placement_of_another_graph(solve, tmp_path, capsys):
    made = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 8)])
    assert solve(made, cluster())[0] == 0
    save_graph(graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 9)]), tmp_path / "graph.json")
    files = [str(tmp_path / "graph.json"), str(tmp_path / "placement.json")]
    assert main(["check", *files]) == 4
    assert "structure_hash: the placement is for graph" in capsys.readouterr().out
