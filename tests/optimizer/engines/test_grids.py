"""Starts that run micro-batches side by side and one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.engines import auto
from placewire.optimizer.engines.costing import Costing
from placewire.optimizer.engines.grids import _stage_ends, few_grid_layouts, grid_layouts
from placewire.optimizer.engines.layers import layers_of
from placewire.optimizer.engines.layout import Layout, Urgency
from placewire.optimizer.engines.pieces import Pieces
from placewire.optimizer.engines.solution import Solution
from placewire.optimizer.engines.structured import structured_starts
from placewire.optimizer.engines.units import unit_able, unit_of_operator
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.problem import Problem, SolveSettings
from tests.drawn_examples import examples
from tests.optimizer.explain.test_parallelism import layered
from tests.optimizer.problems import problems

WEIGHT = 1_000_000


def accumulated(parts: int, weights: int = 4, shared: bool = True) -> OperatorGraph:
    """Micro-batches of a chain of layers, whose gradients are added before the updates. shared: all
    of them also read one small value that needs nothing, as positions do."""
    rows: list[OperatorRow] = []
    tensors: list[TensorRow] = []

    def operator(name: str, kind: str, millis: float, weight: int = 0, on: str = "") -> str:
        _, found, number = name.partition("_m")
        rows.append(
            OperatorRow(
                name, kind, {"cpu": millis / 1e3, "fast": millis / 3e3}, weight_bytes=weight,
                colocation=on or None, micro_batch=int(number) if found and kind != "add" else None,
            )
        )  # fmt: skip
        return name

    def sends(producer: str, consumers: Sequence[str], size: int) -> None:
        tensors.append(TensorRow(producer, tuple(consumers), size))

    w = [operator(f"w{k}", "parameter", 0, WEIGHT, f"w{k}") for k in range(weights)]
    positions = operator("positions", "arange", 0.01) if shared else ""
    added: list[str] = [""] * weights
    readers: dict[str, list[str]] = {name: [] for name in (*w, positions)}
    for m in range(parts):
        below, target = operator(f"x_m{m}", "input", 0), operator(f"t_m{m}", "input", 0)
        forward = []
        for k in range(weights):
            forward.append(operator(f"f{k}_m{m}", "mm", 5))
            readers[w[k]].append(forward[-1])
            sends(below, [forward[-1], f"b{k}_m{m}"], 1000)
            below = forward[-1]
        if positions:
            readers[positions].append(forward[0])
        loss = operator(f"loss_m{m}", "loss", 1)
        sends(below, [loss], 1000)
        sends(target, [loss], 1000)
        sends(loss, ["loss"], 4)
        above = loss
        for k in reversed(range(weights)):
            gradient = operator(f"b{k}_m{m}", "mm", 10)
            sends(above, [gradient], 1000)
            above = gradient
            if m:
                total = operator(f"sum{k}_m{m}", "add", 0.1)
                sends(added[k], [total], WEIGHT)
                sends(gradient, [total], WEIGHT)
                gradient = total
            added[k] = gradient
    for k in range(weights):
        sends(added[k], [operator(f"update{k}", "update", 1, 0, f"w{k}")], WEIGHT)
        sends(w[k], [*readers[w[k]], f"update{k}"], WEIGHT)
    if positions:
        sends(positions, readers[positions], 8)
    operator("loss", "mean", 0)
    return build_graph(rows, tensors, device_types=("cpu", "fast"), notes={"loss": "loss"})


def servers(*kinds: str, gigabits: Sequence[float] = ()) -> Cluster:
    rates = gigabits or [1.0] * len(kinds)
    return Cluster(
        servers=tuple(
            Server(
                name=f"s{k + 1}",
                devices=(Device(type=kind, memory_bytes=1 << 33),),
                nics=(Nic(rail="a", rate_bits_per_second=rate * 1e9),),
            )
            for k, (kind, rate) in enumerate(zip(kinds, rates, strict=True))
        ),
        setup_latency_seconds=1e-5,
        intra_server_bits_per_second=1e10,
    )


def test_a_captured_step_has_a_copy_of_each_operator_in_every_micro_batch() -> None:
    model = "placewire.examples.models.transformer:training_step_small"
    graph = capture(model, 8, OptimizerChoice(), 0, accumulate=4).operators
    names, part = np.array(graph.ids), graph.micro_batch
    assert int(part.max()) == 3
    for m in range(4):
        inside = names[part == m]
        assert len(inside) == (part == 0).sum() and all(n.endswith(f"_m{m}") for n in inside)
    shared = set(np.array(graph.types)[part < 0].tolist())
    assert {"parameter", "update", "aten.add.Tensor"} <= shared and "input" not in shared


def test_a_replica_is_where_a_micro_batch_reads_it() -> None:
    model = "placewire.examples.models.transformer:training_step_small"
    step = capture(model, 8, OptimizerChoice(), 0, accumulate=8, shards=4)
    graph = step.operators
    graph = replace(graph, device_types=("cpu",), seconds=np.full((graph.operator_count, 1), 1e-4))
    for start in data_parallel(Problem(graph, servers(*["cpu"] * 4))):
        for name in step.code.members:
            i, number = graph.index_of[name], int(name.rpartition("_")[2])
            parts = (graph.micro_batch >= 0) & (graph.micro_batch % 4 == number)
            assert start.device[i] in start.device[parts]
    assert len(step.code.members) >= 4 and set(start.device[parts].tolist()) == {start.device[i]}


def test_batch_norms_are_of_a_micro_batch() -> None:
    model = "placewire.examples.models.resnet50:training_step_small"
    graph = capture(model, 4, OptimizerChoice(), 0, accumulate=2).operators
    norms = ["batch_norm" in kind for kind in graph.types]
    assert set(graph.micro_batch[norms].tolist()) == {0, 1}


def test_a_whole_batch_is_no_micro_batch() -> None:
    model = "placewire.examples.models.mlp:training_step"
    graph = capture(model, 4, OptimizerChoice(), 0).operators
    assert set(graph.micro_batch.tolist()) == {-1}


def test_layers_rise_along_the_model_forward_and_backward_alike() -> None:
    graph = accumulated(3)
    layer = layers_of(graph, np.arange(graph.operator_count), graph.seconds[:, 0])
    assert layer is not None
    at = {name: float(layer[i]) for name, i in graph.index_of.items()}
    for m in range(3):
        for half in "fb":
            depth = [at[f"{half}{k}_m{m}"] for k in range(4)]
            assert depth in (sorted(depth), sorted(depth, reverse=True)), depth
        assert at[f"f1_m{m}"] == at["f1_m0"]
        assert (at["f0_m0"] < at["f3_m0"]) == (at["b0_m0"] < at["b3_m0"])


def test_micro_batches_that_are_no_copies_have_no_common_layers() -> None:
    graph = accumulated(2)
    types = [
        "other" if name == "f1_m1" else kind
        for name, kind in zip(graph.ids, graph.types, strict=True)
    ]
    graph = replace(graph, types=tuple(types))
    assert layers_of(graph, np.arange(graph.operator_count), graph.seconds[:, 0]) is None


def grid_starts(problem: Problem) -> list[Solution]:
    pieces = Pieces(problem)
    if pieces.micro_batches < 2:
        return []
    return [pieces.solution(layout) for layout in grid_layouts(pieces)]


def data_parallel(problem: Problem) -> list[Solution]:
    """The starts in which every micro-batch is on one device."""
    part = problem.graph.micro_batch
    return [
        start
        for start in grid_starts(problem)
        if all(len(set(start.device[part == m].tolist())) == 1 for m in range(int(part.max()) + 1))
    ]


def test_each_part_is_whole_and_weights_are_spread_by_the_rates_of_nics() -> None:
    graph = accumulated(4, weights=9)
    problem = Problem(graph, servers(*["cpu"] * 3, gigabits=(1.0, 1.0, 4.0)))
    start, part = data_parallel(problem)[-1], graph.micro_batch
    homes = [set(start.device[part == m].tolist()) for m in range(4)]
    assert all(len(home) == 1 for home in homes) and set().union(*homes) == {0, 1, 2}
    weights = [int(start.device[graph.index_of[f"w{k}"]]) for k in range(9)]
    assert [weights.count(d) for d in range(3)] == [1, 1, 7]
    for k in range(9):
        last = start.device[[graph.index_of[name] for name in (f"update{k}", f"sum{k}_m3")]]
        assert set(last.tolist()) == {weights[k]}


def test_a_device_that_is_three_times_as_fast_gets_three_times_as_many() -> None:
    graph = accumulated(8)
    problem = Problem(graph, servers("cpu", "fast"))
    part = graph.micro_batch
    for start in data_parallel(problem):
        assert sum(int(start.device[part == m][0]) == 1 for m in range(8)) == 6


def test_data_parallelism_begins_with_gradients_that_wait_and_with_some_that_do_not() -> None:
    starts = data_parallel(Problem(accumulated(8), servers("cpu", "cpu")))
    assert len({start.device.tobytes() for start in starts}) == 1
    # Whether they wait, and five ways to say what is urgent, of which two are no others here: what
    # makes a gradient in this step also leads on to the next layer.
    assert len({start.priority.tobytes() for start in starts}) == 2 * 4


def test_operators_that_only_make_gradients_are_known_and_no_others() -> None:
    graph = layered(4, 4)
    pieces = Pieces(Problem(graph, servers(*["cpu"] * 4)))
    named = {name for name, only in zip(graph.ids, pieces.for_gradients, strict=True) if only}
    # What comes before the first layer's gradient leads nowhere else.
    assert named == {f"{name}_m{m}" for name in ("b0", "g0", "g1", "g2", "g3") for m in range(4)}


def test_gradients_that_are_made_first_are_sent_while_others_are_computed() -> None:
    """Over NICs that take as long for all gradients as devices compute."""
    graph = layered(4, 8)
    problem = Problem(graph, servers(*["cpu"] * 4, gigabits=[0.1] * 4), sharing="job")
    pieces = Pieces(problem)
    by_urgency: dict[Urgency, float] = {}
    for layout in grid_layouts(pieces):
        if (layout.home == layout.home[0]).all() and len(set(layout.home[0].tolist())) == 4:
            cost = pieces.cost(layout).cost
            by_urgency[layout.urgency] = min(cost, by_urgency.get(layout.urgency, cost))
    first, by_path = by_urgency[Urgency(True, True)], by_urgency[Urgency()]
    assert first < 0.95 * by_path


def test_every_priority_is_a_number_that_a_search_can_move_by_a_part_of_itself() -> None:
    pieces = Pieces(Problem(layered(4, 8), servers(*["cpu"] * 4), sharing="job"))
    starts = [pieces.solution(layout).priority for layout in grid_layouts(pieces)]
    assert all(priority is not None and np.isfinite(priority).all() for priority in starts)


@pytest.mark.parametrize("latency_seconds", [1e-5, 0.1, 1.0])
@pytest.mark.parametrize("layouts", [grid_layouts, few_grid_layouts])
def test_more_servers_are_never_worse(
    latency_seconds: float, layouts: Callable[[Pieces], Iterator[Layout]]
) -> None:
    """On a slow network, where each of them only sends more, a grid leaves some unused."""
    graph = accumulated(8, weights=9)
    best = []
    for count in (2, 4, 8):
        on = servers(*["cpu"] * count, gigabits=[0.01] * count)
        on = on.model_copy(update={"setup_latency_seconds": latency_seconds})
        pieces = Pieces(Problem(graph, on, "job"))
        # Few grids have no data parallelism on some of the devices.
        pipelines = [x for x in layouts(pieces) if (x.home != x.home[0]).any()]
        best.append(min(pieces.cost(layout).cost for layout in pipelines))
    assert best[2] <= best[1] * (1 + 1e-9) and best[1] <= best[0] * (1 + 1e-9)


@pytest.mark.parametrize("count", [5, 6, 7, 9, 11])
def test_few_grids_have_as_many_rows_as_there_are_devices_for(count: int) -> None:
    pieces = Pieces(Problem(accumulated(8, weights=9), servers(*["cpu"] * count), "job"))
    shapes = set()
    for layout in few_grid_layouts(pieces):
        rows = {row.tobytes() for row in layout.home.T}
        shapes.add((len({*layout.home[:, 0].tolist()}), len(rows)))
    for columns in (2, 4):
        assert {(columns, 1), (columns, count // columns)} <= shapes


def test_the_few_grids_are_near_the_best_of_all() -> None:
    for graph in (layered(4, 8), layered(8, 8), accumulated(8)):
        pieces = Pieces(Problem(graph, servers(*["cpu"] * 4), sharing="job"))
        few = min(pieces.cost(layout).cost for layout in few_grid_layouts(pieces))
        every = [pieces.cost(layout).cost for layout in grid_layouts(pieces)]
        assert min(every) <= few <= 1.25 * min(every)
        assert len(list(few_grid_layouts(pieces))) < len(every) / 5


def test_the_search_is_never_worse_than_whole_micro_batches_side_by_side() -> None:
    problem = Problem(accumulated(4), servers(*["cpu"] * 4), sharing="even")
    costing = Costing(problem)
    best = min(costing.cost(start).cost for start in grid_starts(problem))
    assert best < costing.reference / 2
    found = auto.solve(problem, SolveSettings(moves=200, seed=1))
    assert costing.cost(found).cost <= best * (1 + 1e-9)


def test_one_operator_that_a_fast_device_cannot_run_keeps_no_part_from_it() -> None:
    graph = accumulated(8)
    seconds = graph.seconds.copy()
    losses = np.array([kind == "loss" for kind in graph.types])
    seconds[losses, 1] = np.inf
    graph = graph.with_seconds({"cpu": seconds[:, 0], "fast": seconds[:, 1]})
    problem = Problem(graph, servers("cpu", "fast", "fast"))
    start = list(grid_starts(problem))[-1]
    products = np.array([kind == "mm" for kind in graph.types])
    assert (start.device[products] > 0).mean() > 0.5
    assert set(start.device[losses].tolist()) == {0}


def test_a_pipeline_has_a_piece_of_the_layers_on_each_device() -> None:
    graph = accumulated(4)
    problem = Problem(graph, servers("cpu", "cpu"))
    pipelines = [s for s in grid_starts(problem) if (s.device[graph.micro_batch == 0] == 1).any()]
    start = next(s for s in pipelines if (s.device[graph.micro_batch == 0] == 0).any())
    of = {name: int(start.device[i]) for name, i in graph.index_of.items()}
    for k in range(4):
        places = {of[f"{half}{k}_m{m}"] for half in "fb" for m in range(4)}
        assert places == {of[f"w{k}"]} == {of[f"update{k}"]}
    assert of["f0_m0"] == of["f1_m0"] != of["f2_m0"] == of["f3_m0"]


def test_a_pipeline_over_four_devices_keeps_all_of_them_busy() -> None:
    """Sixteen micro-batches of 4 stages take 19 turns, where one device takes 64."""
    graph = accumulated(16)
    problem = Problem(graph, servers(*["cpu"] * 4), sharing="even")
    costing = Costing(problem)
    alone = graph.seconds[:, 0].sum()
    pipelines = [s for s in grid_starts(problem) if len(set(s.device.tolist())) == 4]
    best = min(costing.cost(start).cost for start in pipelines)
    assert alone / 4 < best < alone / 3


def test_stages_of_unlike_devices_follow_the_model() -> None:
    """However fast one device is, every device has pieces, and no stage begins before another one
    that comes earlier."""
    kinds = ("fast", "cpu", "cpu", "cpu")
    pieces = Pieces(Problem(accumulated(8, weights=30), servers(*kinds)))
    shares = np.cumsum([8, 1, 1, 1, 8, 1, 1, 1]) / 22
    for off_equal in (0.0, 0.1, 0.25, 0.9):
        ends = _stage_ends(pieces, shares, off_equal)
        assert ends.tolist() == sorted(set(ends.tolist())), off_equal


def test_the_better_half_of_the_layers_is_on_the_faster_device() -> None:
    graph = accumulated(6, weights=8)
    problem = Problem(graph, servers("cpu", "fast"))
    part = graph.micro_batch == 0
    shares = [(start.device[part] == 1).mean() for start in grid_starts(problem)]
    assert any(0.6 < share < 0.9 for share in shares), shares


def test_a_large_step_of_micro_batches_costs_few_simulations_of_cuts() -> None:
    """Whole pieces are searched better; moving cuts took half of the time limit."""
    graph = accumulated(70, weights=20)
    assert graph.operator_count > 2_000
    problem, counted = Problem(graph, servers(*["cpu"] * 4), sharing="even"), [0]
    costing = Costing(problem)

    def cost(solution: Solution) -> tuple[float, float]:
        counted[0] += 1
        return costing.cost(solution).key

    assert structured_starts(problem, cost) and counted[0] < 70
    whole = replace(graph, micro_batch=np.full_like(graph.micro_batch, -1))
    few, counted[0] = counted[0], 0
    structured_starts(replace(problem, graph=whole), cost)
    assert counted[0] > 2 * few


@st.composite
def with_micro_batches(draw: st.DrawFn) -> Problem:
    """Some operators are said to work for one of three micro-batches, and one to make the loss."""
    problem = draw(problems())
    numbers = [draw(st.integers(-1, 2)) for _ in problem.graph.ids]
    loss = draw(st.sampled_from(problem.graph.ids))
    graph = replace(
        problem.graph, micro_batch=np.array(numbers, dtype=np.int64), notes={"loss": loss}
    )
    return replace(problem, graph=graph)


@pytest.mark.hypothesis
def test_starts_are_placements_that_keep_groups_together() -> None:
    seen = [0]

    @settings(max_examples=examples(150), deadline=None)
    @given(with_micro_batches())
    def kept_together(problem: Problem) -> None:
        unit, starts = unit_of_operator(problem), list(grid_starts(problem))
        seen[0] += len(starts)
        for start in starts:
            require_placement(problem, unit, start)

    kept_together()
    assert seen[0] > 5, "else nothing was looked at"


def require_placement(problem: Problem, unit: IntArray, start: Solution) -> None:
    able = unit_able(problem, unit)
    assert set(start.device.tolist()) <= set(range(len(problem.cluster.devices)))
    for u in set(unit.tolist()):
        (device,) = set(start.device[unit == u].tolist())
        assert able[u, device] or not able[u].any()
