"""Tests what rounding to whole numbers changes, and that CP-SAT takes the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model

from placewire.optimizer.cluster import Cluster, Device, Nic, Server
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.published.formulations import sorted_intervals, whole_numbers
from placewire.optimizer.published.formulations.engine import solve
from placewire.optimizer.published.formulations.errors import FormulationTooLargeError
from placewire.optimizer.published.formulations.own_step import own_step
from placewire.optimizer.published.formulations.papers import PaperName, formulate
from placewire.optimizer.published.formulations.whole_numbers import WholeNumbers
from tests.optimizer.cases import BYTE_PER_MICROSECOND, cluster, podded
from tests.optimizer.published.test_programs_and_pods import sends
from tests.optimizer.published.test_sorted_intervals import odd

OVER_CP_SAT = SolveSettings(gap=0.0, time_limit_seconds=60.0, options={"solver": "cp-sat"})


def chain(operators: int, *first: float) -> Problem:
    """Operators of 1 s and tensors of 8 bytes, on one device for each of `first`: the seconds of
    the first operator there."""
    kinds = [f"d{k}" for k in range(len(first))]
    rows = [
        OperatorRow(
            f"o{k}", "op", dict(zip(kinds, first if k == 0 else [1.0] * len(first), strict=True))
        )
        for k in range(operators)
    ]
    tensors = [TensorRow(f"o{k}", (f"o{k + 1}",), 8) for k in range(operators - 1)]
    where = cluster(len(first), types=kinds)
    return Problem(build_graph(rows, tensors), where, "strict", "thesis")


def pods_of(pods: int, each: int) -> dict[str, list[str]]:
    return {f"p{p}": [f"s{p * each + k + 1}" for k in range(each)] for p in range(pods)}


def of(problem: Problem, name: PaperName) -> WholeNumbers:
    return WholeNumbers(formulate(problem, name, with_rows=False))


def test_ticks_change_a_step_by_less_than_is_stated():
    """Of random placements of graphs of several sizes, whose times no tick divides."""
    largest = 0.0
    stated = of(odd(5, 1), "thesis-p2")
    assert stated.time_rounding < 1.1e-5 and stated.rate_rounding < 4e-4
    assert of(odd(5, 1), "thesis-p1").time_rounding == 5e-6
    for n, seed in ((5, 1), (20, 2), (80, 3)):
        problem = odd(n, seed)
        for name in ("thesis-p1", "thesis-p2"):
            whole = of(problem, name)
            instance, network = whole.instance, whole.network
            generator = np.random.default_rng(seed)
            for _ in range(20):
                device = generator.integers(0, 3, n)
                parts = whole.even_parts(device)
                rates = whole.rates(parts) if name == "thesis-p2" else None
                exact = own_step(instance, network, device, rates) / whole.seconds
                _, ticks = sorted_intervals._in_ticks(instance, whole, device, parts)
                error = abs(ticks / whole.horizon - exact)
                assert error <= whole.time_rounding + exact * whole.rate_rounding
                assert name == "thesis-p2" or error <= whole.time_rounding
                largest = max(largest, error / whole.time_rounding)
    assert largest > 0.0


def test_the_parts_of_a_tensor_are_as_fine_for_a_fast_sender_as_for_a_slow_one():
    """A hundred times faster, and in between."""
    nics = [Nic(rail="a", rate_bits_per_second=rate) for rate in (1e6, np.e * 1e7, 1e8)]
    servers = tuple(
        Server(name=f"s{k}", devices=(Device(type="cpu", memory_bytes=10**9),), nics=(nic,))
        for k, nic in enumerate(nics)
    )
    where = Cluster(servers=servers, setup_latency_seconds=0.0, intra_server_bits_per_second=1e9)
    rows = [OperatorRow(f"o{k}", "op", {"cpu": 1.0}) for k in range(8)]
    tensors = [TensorRow("o0", (f"o{k}",), 3 * 6**k) for k in range(1, 8)]
    whole = of(Problem(build_graph(rows, tensors), where, "strict", "thesis"), "thesis-p2")
    most = whole.slowness(whole.least_parts) / whole_numbers.SLOWNESS_PARTS
    absolute = (whole.time_rounding * whole_numbers.TICKS - 2.0) / most
    for e in range(7):
        exact = whole._at_the_widest(e)
        size, scale = whole.decided(e)
        assert (np.abs(size / scale - exact) <= np.maximum(0.5 / 2**14 * exact, absolute)).all()


@pytest.mark.parametrize("operators", [10, 100])
def test_an_operator_that_takes_far_longer_on_one_device_is_not_run_there(operators):
    """A hundred thousand seconds on the second device, where all on the first one take few."""
    heard: list[Any] = []
    problem = chain(operators, 1.0, 1e5)
    solution = solve("thesis-p2", problem, OVER_CP_SAT, heard.append)
    assert solution.device[0] == 0
    assert heard[-1].incumbent_seconds == pytest.approx(operators)


def test_a_long_chain_is_not_beyond_64_bits():
    """44,000 operators: the model holds a row for a tensor of the whole chain's many ticks."""
    whole = of(chain(44_000, 1.0, 1.0), "thesis-p2")
    assert whole.latest > 2**32
    _, scale = whole.decided(0)
    finest = int(scale.max())
    assert finest * whole_numbers.SLOWNESS_PARTS * 4 * whole.latest < 2**61
    # As in `_of_pairs`, of the largest tensor and the smallest.
    for size, part in ((whole.latest, 1), (2 * 2**14, finest)):
        model: Any = cp_model.CpModel()
        first, second = (model.new_int_var(0, whole.latest, "") for _ in range(2))
        slow = model.new_int_var(1, whole.slowness(whole.least_parts), "")
        room = whole_numbers.SLOWNESS_PARTS * part * (second - first - 2 * whole.latest)
        model.add(size * slow <= room)
        assert model.validate() == ""
    assert whole.time_rounding < 1e-4


@pytest.mark.parametrize(
    "where",
    [
        podded(4.0, nics=(4.0,), servers=8, pods=pods_of(2, 4)),
        cluster(9, [4 * BYTE_PER_MICROSECOND]),
        cluster(24, [4 * BYTE_PER_MICROSECOND]),
    ],
    ids=["8 in two pods", "9", "24"],
)
@pytest.mark.parametrize("name", ["thesis-p2", "thesis-p3"])
def test_many_servers_are_solved_within_the_rounding(name, where):
    """The first server sends 4 MB from the first second on, and 2 MB from the next on, to the two
    last ones, over a NIC and an uplink of 4 MB/s. Two seconds at 2 MB/s, and one, are the best."""
    last = len(where.servers) - 1
    problem = sends(where, [(0, last, 2), (0, last - 1, 4)])
    heard: list[Any] = []
    solve(name, problem, OVER_CP_SAT, heard.append)
    whole, exact = of(problem, name), 1.0 + 4.0 / 2.0 + 2.0
    rounding = exact * whole.rate_rounding + whole.seconds * whole.time_rounding
    assert rounding < 1e-3 * exact
    assert exact * (1 - 1e-9) <= heard[-1].incumbent_seconds <= exact + rounding
    assert exact - 2 * rounding <= heard[-1].bound_seconds <= exact


@pytest.mark.parametrize(
    "where",
    [cluster(129), podded(servers=24, pods=pods_of(3, 8))],
    ids=["129", "24 in three pods"],
)
def test_cp_sat_takes_the_most_bandwidths_that_are_not_refused(where):
    """128 of one server, or over one uplink: its domains together, and each row, fit."""
    formulation = formulate(sends(where, [(0, 1, 4)]), "thesis-p2", with_rows=False)
    whole = WholeNumbers(formulation)
    assert whole.pairs_of_a_limit == 128
    whole_numbers.refuse_beyond_64_bits(formulation)
    assert sorted_intervals._Model(formulation, whole, None).model.validate() == ""


def test_more_servers_than_64_bits_have_room_for_are_refused():
    rows = [OperatorRow(f"o{k}", "op", {"cpu": 1.0}) for k in range(3)]
    tensors = [TensorRow("o0", (f"o{k}",), 1000) for k in (1, 2)]
    graph = build_graph(rows, tensors)
    with pytest.raises(FormulationTooLargeError, match="more than 64 bits") as refused:
        solve("thesis-p2", Problem(graph, cluster(300)), OVER_CP_SAT)
    for words in ("3 operators", "299 bandwidths to decide of one server", "--solver highs"):
        assert words in str(refused.value)
