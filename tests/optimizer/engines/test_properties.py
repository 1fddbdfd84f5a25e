"""What holds for every problem, drawn at random: engines answer with placements that pass the
check, reductions lose nothing, and bound <= optimum <= auto <= best single device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewire.optimizer.bounds import lower_bound
from placewire.optimizer.bounds.memory_limits import refuse_impossible
from placewire.optimizer.check.check import check
from placewire.optimizer.engines.engine import ENGINES
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import EngineRefusedError, OutOfTimeError
from placewire.optimizer.graph.operator_graph import (
    OperatorRow,
    TensorRow,
    build_graph,
    tensor_rows,
)
from placewire.optimizer.network.nics import widest_rates
from placewire.optimizer.problem import InfeasibleError, SolveSettings
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.reductions.chain import reduce_by_name
from placewire.optimizer.reductions.reduction import REDUCTIONS
from placewire.optimizer.reductions.refusals import ReductionRefusedError
from placewire.optimizer.simulation.simulate import simulate
from tests.optimizer.cases import cluster, described
from tests.optimizer.check.brute_force import simulated_optimum
from tests.optimizer.problems import MODELS, SHARINGS, able_devices, drawn, problems

ROUNDING = 1 + 1e-6
# Room for some of the operators that are drawn, so that memory decides now and then.
TIGHT = st.sampled_from([100_000, 200_000, 10**9])

SEARCHES = ("auto", "heft", "single")
# Of the other engines those that are programs, and `sequential`; test_catalog has the rest.
PAPERS = (
    "sequential", "hsdag", "placeto", "moirai", "icc-p1", "icc-p2", "thesis-p1", "thesis-p2",
    "thesis-p3", "thesis-p3-fixed",
)  # fmt: skip


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    "engine",
    # Learning takes seconds for each problem.
    [
        pytest.param(name, marks=pytest.mark.thorough) if name == "hsdag" else name
        for name in PAPERS
    ],
)
def test_answers_of_published_formulations_pass_the_check(engine):
    """They may refuse a cluster that the papers do not know, or find no placement in the time."""
    ENGINES.load(engine)  # what it imports takes none of its time
    gave = []

    @drawn(8, always=True)
    @given(problems(largest=4, servers=2, models=("contended", "thesis")))
    def answers(problem):
        # Most clusters drawn are not what the papers describe: half get equal servers instead.
        if len(problem.graph.ids) % 2:
            problem = replace(problem, cluster=cluster(2, (8e6,), types=["cpu", "cpu"]))
        # A program ends when it is solved; learning takes all of its time.
        learns = engine in ("hsdag", "placeto")
        settings = SolveSettings(gap=0.05, time_limit_seconds=2.0 if learns else 120.0)
        try:
            placement = place(problem, engine, settings)
        except (
            EngineRefusedError,
            FormulationTooLargeError,
            InfeasibleError,
            OutOfTimeError,
        ):
            return
        assert check(problem.graph, placement) == ()
        gave.append(placement)

    answers()
    assert gave


@pytest.mark.hypothesis
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("engine", SEARCHES)
def test_every_answer_passes_the_check(engine, sharing):
    gave = []

    # HEFT is quick, and seldom leaves a device.
    @drawn(40 if engine == "heft" else 12, always=True)
    @given(problems(largest=8, servers=3, memory=TIGHT))
    def answers(problem):
        problem = replace(problem, sharing=sharing)
        try:
            placement = place(problem, engine, SolveSettings(gap=0.0, moves=120, seed=1))
        except InfeasibleError:
            # The first device has room and times for everything: only HEFT may overlook that.
            assert engine == "heft"
            return
        assert check(problem.graph, placement) == ()
        assert set(placement.operators) == set(problem.graph.ids)
        assert placement.single_device_seconds is not None
        if engine != "heft":
            assert placement.step_seconds <= placement.single_device_seconds * ROUNDING
        gave.append(placement)

    answers()
    if engine != "single":
        assert any(placement.messages for placement in gave)


@pytest.mark.hypothesis
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_bound_optimum_auto_and_one_device_are_in_this_order(sharing, model):
    """Two servers at most: there every pair may have its widest rate, so that the best decision of
    rates under `strict` and `guarantee` is known."""

    @drawn(12)
    @given(problems(largest=4, servers=2, memory=TIGHT, models=(model,)))
    def ordered(problem):
        problem = replace(problem, sharing=sharing)
        rates = widest_rates(problem.usable) if problem.decides_rates else None
        optimum = simulated_optimum(problem, rates)
        found = place(problem, "auto", SolveSettings(gap=0.0, moves=200))
        assert lower_bound(problem).seconds <= found.bound_seconds * ROUNDING
        assert found.bound_seconds <= optimum * ROUNDING
        assert optimum <= found.step_seconds * ROUNDING
        assert found.single_device_seconds is not None
        assert found.step_seconds <= found.single_device_seconds * ROUNDING

    ordered()


@pytest.mark.hypothesis
@pytest.mark.parametrize("model", MODELS)
def test_what_some_placement_fits_into_is_not_refused_before_the_search(model):
    refused = 0

    @drawn(60, always=True)
    @given(st.data())
    def not_refused(data):
        nonlocal refused
        problem = data.draw(problems(largest=6, models=(model,)))
        rates = widest_rates(problem.usable) if problem.decides_rates else None
        needed = simulate(problem, data.draw(able_devices(problem)), rates=rates).peak_memory_bytes
        memory = max(int(needed.max()), 1)
        refuse_impossible(with_memory(problem, memory))
        try:
            refuse_impossible(with_memory(problem, max(memory // 2, 1)))
        except InfeasibleError:
            refused += 1

    not_refused()
    assert refused > 0


def with_memory(problem, memory_bytes):
    """The same on devices of so much each."""
    servers = tuple(
        server.model_copy(
            update={
                "devices": tuple(
                    device.model_copy(update={"memory_bytes": memory_bytes})
                    for device in server.devices
                )
            }
        )
        for server in problem.cluster.servers
    )
    return replace(problem, cluster=problem.cluster.model_copy(update={"servers": servers}))


@pytest.mark.parametrize("name", REDUCTIONS.names)
@drawn(15)
@given(st.data())
def test_undoing_a_reduction_covers_every_operator_and_keeps_its_order(name, data):
    undone_keeps_everything(data.draw(problems(largest=12)), name, data)


@pytest.mark.parametrize("name", sorted(set(REDUCTIONS.names) - {"none"}))
@drawn(4)
@given(st.data())
def test_undoing_what_large_graphs_are_reduced_by(name, data):
    """Copies of a small graph side by side: large enough for everything that goes by size."""
    problem = data.draw(problems(largest=12))
    copies = -(-140 // problem.graph.operator_count)
    large = replace(problem, graph=side_by_side(problem.graph, copies))
    small = undone_keeps_everything(large, name, data)
    assert small <= large.graph.operator_count


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", sorted(set(REDUCTIONS.names) - {"auto", "none"}))
def test_answers_through_every_reduction_pass_the_check(name):
    gave = []

    @drawn(8, always=True)
    @given(problems(largest=10, servers=3, memory=TIGHT), st.sampled_from(["heft", "auto"]))
    def answers(problem, engine):
        # Pesto's target is 200 operators; others find nothing to do in a few small graphs.
        copies = -(-(210 if name == "pesto" else 40) // problem.graph.operator_count)
        problem = replace(problem, graph=described(side_by_side(problem.graph, copies)))
        try:
            placement = place(problem, engine, SolveSettings(gap=0.0, moves=60, seed=1), name)
        except ReductionRefusedError:
            return
        except InfeasibleError:
            assert engine == "heft"
            return
        assert check(problem.graph, placement) == ()
        gave.append(placement.reduction)

    answers()
    assert any(words.startswith(f"{name}: ") for words in gave)


def side_by_side(graph, copies):
    rows = [
        OperatorRow(
            f"{identifier}.{c}",
            "op",
            {
                kind: float(seconds)
                for kind, seconds in zip(graph.device_types, graph.seconds[i], strict=True)
                if np.isfinite(seconds)
            },
            weight_bytes=int(graph.weight_bytes[i]),
            activation_bytes=int(graph.activation_bytes[i]),
            colocation=f"{graph.colocation[i]}.{c}" if graph.colocation[i] >= 0 else None,
        )
        for c in range(copies)
        for i, identifier in enumerate(graph.ids)
    ]
    tensors = [
        TensorRow(f"{row.producer}.{c}", tuple(f"{name}.{c}" for name in row.consumers), row.bytes)
        for c in range(copies)
        for row in tensor_rows(graph)
    ]
    return build_graph(rows, tensors, device_types=graph.device_types)


def undone_keeps_everything(problem, name, data):
    """The size of the reduced graph; of the given one where the reduction does not take it."""
    problem = replace(problem, graph=described(problem.graph))
    try:
        small, undo, _ = reduce_by_name(problem, name)
    except ReductionRefusedError:
        return problem.graph.operator_count
    device = data.draw(able_devices(small))
    count = small.graph.operator_count
    priority = np.random.default_rng(count).permutation(count).astype(float)
    where, urgency = undo(device, priority)
    assert where.shape == urgency.shape == (problem.graph.operator_count,)
    assert set(where.tolist()) == set(device.tolist())
    key = problem.graph.colocation
    assert all(len(set(where[key == k].tolist())) == 1 for k in set(key[key >= 0].tolist()))
    # Operators that the small graph names keep their turns among each other.
    kept = [problem.graph.index_of[identifier] for identifier in small.graph.ids]
    urgent_first = sorted(range(count), key=lambda k: -priority[k])
    assert sorted(range(count), key=lambda k: -urgency[kept[k]]) == urgent_first
    assert [where[i] for i in kept] == device.tolist()
    rates = widest_rates(problem.usable) if problem.decides_rates else None
    after = simulate(problem, where, urgency, None, rates)
    assert sorted(i for row in after.order for i in row) == list(range(len(where)))
    return count
