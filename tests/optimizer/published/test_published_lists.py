"""Tests HEFT, PEFT, m-ETF, m-SCT and GETF: examples of their papers, or our own worked by hand, and
properties that hold by construction."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from placewire.optimizer.check.check import check
from placewire.optimizer.engines import heft
from placewire.optimizer.engines.place import place
from placewire.optimizer.engines.refusals import OutOfTimeError
from placewire.optimizer.engines.solution import Progress
from placewire.optimizer.engines.transfer_times import transfer_times
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.problem import InfeasibleError, Problem, SolveSettings
from placewire.optimizer.published.engines import getf, getf_program, m_etf, m_sct, peft
from placewire.optimizer.published.engines import heft as heft_engine
from placewire.optimizer.published.engines.shared.deadline import deadline
from placewire.optimizer.published.formulations.instance import Instance
from tests.drawn_examples import examples
from tests.optimizer.published.published_cases import (
    HEFT_EDGES,
    HEFT_SECONDS,
    PEFT_EDGES,
    PEFT_SECONDS,
    alike,
    device_of,
    devices_in_one_server,
    printed,
    schedule_of,
    small_problems,
)

SETTINGS = SolveSettings(time_limit_seconds=600.0)
FEW = settings(max_examples=examples(40), deadline=None)


# --- HEFT -----------------------------------------------------------------------------------------


def test_heft_on_the_example_of_its_paper():
    """Table 1 (upward ranks, two decimals rounded) and figure 3: a schedule of 80."""
    problem = printed(HEFT_SECONDS, HEFT_EDGES)
    ranks = dict(zip(problem.graph.ids, heft.upward_ranks(problem).tolist(), strict=True))
    stated = {
        "n1": 108.0, "n2": 77.0, "n3": 80.0, "n4": 80.0, "n5": 69.0, "n6": 63.333, "n7": 42.667,
        "n8": 35.667, "n9": 44.333, "n10": 14.667,
    }  # fmt: skip
    assert ranks == pytest.approx(stated, abs=5e-4)
    where, start, makespan = schedule_of(problem, heft_engine.solve(problem, SETTINGS))
    assert makespan == pytest.approx(80.0)
    # n1 first, on P3 where it takes 9; n10 last, on P2 where it takes 7.
    assert where["n1"] == 2 and start["n1"] == 0.0
    assert where["n10"] == 1 and start["n10"] == pytest.approx(73.0)


def test_less_of_a_memory_is_filled_where_buffers_need_the_rest():
    """Three operators of 40 bytes, of which a sends 30 to each of the others; devices of 90. Two
    weights fit onto a device, and their messages, 30 bytes received beside 80, do not. With four
    fifths of the memory, 72, each gets a device of its own: 40 + 30 = 70 at most."""
    rows = [
        OperatorRow(n, "op", {"d": s}, weight_bytes=40)
        for n, s in (("a", 1e-6), ("b", 9e-6), ("c", 9e-6))
    ]
    tensors = [TensorRow("a", (n,), 30) for n in "bc"]
    problem = Problem(
        build_graph(rows, tensors), devices_in_one_server(["d"] * 3, memory=90), "even"
    )
    for engine in ("heft", "m-etf", "dsc"):
        placement = place(problem, engine, SETTINGS)
        assert check(problem.graph, placement) == ()


@FEW
@given(small_problems())
def test_upward_ranks_fall_along_every_edge(problem):
    rank = heft.upward_ranks(problem)
    source, target, _ = problem.graph.edges
    assert (rank[source] >= rank[target]).all()
    schedule_of(problem, heft_engine.solve(problem, SETTINGS))


# --- PEFT -----------------------------------------------------------------------------------------


def test_peft_on_the_example_of_its_paper():
    """Table 1's optimistic costs; figure 2: PEFT needs 122, HEFT 133."""
    problem = printed(PEFT_SECONDS, PEFT_EDGES)
    table = peft.optimistic_costs(problem, deadline("peft", SETTINGS))
    rows = dict(zip(problem.graph.ids, np.round(table, 6).tolist(), strict=True))
    # t10 ends everything. t9: the least of staying and of t10 elsewhere with 7 for the transfer:
    # min(13, 16 + 7, 33 + 7), min(13 + 7, 16, 33 + 7), min(13 + 7, 16 + 7, 33).
    assert rows["t10"] == [0, 0, 0]
    assert rows["t9"] == [13, 16, 20]
    assert rows["t8"] == [13, 16, 33]  # the transfer of 42 never pays
    assert rows["t7"] == [13, 16, 22]
    _, _, makespan = schedule_of(problem, peft.solve(problem, SETTINGS))
    assert makespan == pytest.approx(122.0)
    _, _, of_heft = schedule_of(problem, heft_engine.solve(problem, SETTINGS))
    assert of_heft == pytest.approx(133.0)


@FEW
@given(small_problems())
def test_optimistic_costs_never_exceed_what_follows_on_one_device(problem):
    """Staying on the device is one of the ways to the end, so no entry is longer than the longest
    path behind the operator there."""
    table = peft.optimistic_costs(problem, deadline("peft", SETTINGS))
    behind = np.zeros_like(table)
    for i in problem.graph.topological_order[::-1].tolist():
        for e in problem.graph.output_tensors(i).tolist():
            for j in problem.graph.tensor_consumers(e).tolist():
                behind[i] = np.maximum(behind[i], behind[j] + problem.seconds[j])
    assert (table <= behind + 1e-12).all()
    assert (table >= 0).all()
    schedule_of(problem, peft.solve(problem, SETTINGS))


# --- m-ETF ----------------------------------------------------------------------------------------

FORK = {"A": 2.0, "B": 4.0, "C": 3.0, "D": 1.0}
FORK_EDGES = {("A", "B"): 1.0, ("A", "C"): 1.0, ("B", "D"): 1.0, ("C", "D"): 1.0}


def test_m_etf_takes_the_earliest_pair():
    """Two devices. A on 0, 0 to 2. B and C could start at 2 on 0, at 2 + 1 on 1; B has the longer
    path behind it (4 + 1 + 1): B on 0, 2 to 6. C would start at 6 on 0, at 3 on 1: C on 1, 3 to 6.
    D at max(6, 6 + 1) = 7 on either: the lower, 0, 7 to 8."""
    problem = alike(FORK, FORK_EDGES, 2)
    where, start, makespan = schedule_of(problem, m_etf.solve(problem, SETTINGS))
    assert where == {"A": 0, "B": 0, "C": 1, "D": 0}
    assert start == {"A": 0.0, "B": 2.0, "C": 3.0, "D": 7.0}
    assert makespan == 8.0


def test_m_etf_passes_over_a_device_without_room():
    """Devices of 30 bytes. A and B take 10 and 20 of device 0; then D (10) has no room there."""
    held = {"A": 10, "B": 20, "C": 10, "D": 10}
    problem = alike(FORK, FORK_EDGES, 2, weight_bytes=held, memory=30)
    where = device_of(problem, m_etf.solve(problem, SETTINGS).device)
    assert where == {"A": 0, "B": 0, "C": 1, "D": 1}
    with pytest.raises(InfeasibleError, match="m-etf found no device with room"):
        m_etf.solve(alike(FORK, FORK_EDGES, 2, weight_bytes={"A": 31}, memory=30), SETTINGS)


@FEW
@given(small_problems())
def test_no_device_of_m_etf_idles_while_it_could_start_something(problem):
    """Greedy: an operator never starts later than it could have on its own device, after what was
    placed there before it."""
    solution = m_etf.solve(problem, SETTINGS)
    _, _, _ = schedule_of(problem, solution)
    start, device, graph = 0.0 - solution.priority, solution.device, problem.graph
    finish = start + problem.seconds[np.arange(len(device)), device]
    times = transfer_times(problem)
    for i in range(graph.operator_count):
        came = 0.0
        for e in graph.input_tensors(i).tolist():
            j, size = int(graph.tensor_producer[e]), int(graph.tensor_bytes[e])
            a, b = device[j], device[i]
            away = a != b and size > 0
            took = times.setup_seconds[a, b] + size * times.seconds_per_byte[a, b] if away else 0.0
            came = max(came, float(finish[j]) + float(took))
        ends = [t for k, t in enumerate(finish) if device[k] == device[i] and k != i]
        assert any(abs(start[i] - t) < 1e-9 for t in [came, *ends])


# --- m-SCT ----------------------------------------------------------------------------------------

# W and B both follow A; B needs Z as well, which runs beside A.
WAITING = {"A": 1.0, "Z": 1.5, "W": 3.0, "B": 10.0}
WAITING_EDGES = {("A", "W"): 3.0, ("A", "B"): 3.0, ("Z", "B"): 1.0}


def test_m_sct_keeps_a_device_for_the_favourite_child():
    """With t = x of (A, B): B starts at max(1 + 3 t, 1.5 + (1 - t)), least at t = 3/8: below 1/2,
    so B is the favourite of A, and of nobody else, because x of (A, W) and of (Z, B) are 5/8.

    m-ETF starts W on device 0 at 1, so that B waits there until 4 (or comes late on 1): 14.
    m-SCT holds device 0, where A ran, until W could start anywhere, at 1 + 3 = 4. B is there at
    max(1, 1.5 + 1) = 2.5 and ends at 12.5; W goes to 1 at 4."""
    problem = alike(WAITING, WAITING_EDGES, 2)
    favourite = m_sct.favourite_children(problem, deadline("m-sct", SETTINGS))
    named = {problem.graph.ids[i]: j for i, j in enumerate(favourite)}
    assert named == {"A": problem.graph.index_of["B"], "Z": -1, "W": -1, "B": -1}
    where, start, makespan = schedule_of(problem, m_sct.solve(problem, SETTINGS))
    assert where == {"A": 0, "Z": 1, "B": 0, "W": 1}
    assert start == pytest.approx({"A": 0.0, "Z": 0.0, "B": 2.5, "W": 4.0})
    assert makespan == pytest.approx(12.5)
    _, _, of_etf = schedule_of(problem, m_etf.solve(problem, SETTINGS))
    assert of_etf == pytest.approx(14.0)


@pytest.mark.parametrize("transfer", [0.065535, 0.1, 0.52428, 0.7])
def test_no_child_is_the_favourite_of_two_parents_that_are_alike(transfer):
    """Each pair is at 1/2, which the solver gives as 0.49999999999999994."""
    seconds = {"A": 0.1, "B": 0.1, "C": 0.0, "D": 0.0, "E": 0.0, "F": 0.0}
    edges = {("A", "C"): transfer, ("B", "C"): transfer}
    onwards = {("C", name): 0.0072 for name in "DEF"}
    problem = alike(seconds, edges | onwards, 2)
    favourite = m_sct.favourite_children(problem, deadline("m-sct", SETTINGS))
    assert problem.graph.index_of["C"] not in favourite


@FEW
@given(small_problems())
def test_a_favourite_child_is_its_parents_only_one_and_the_other_way_round(problem):
    favourite = m_sct.favourite_children(problem, deadline("m-sct", SETTINGS))
    taken = [j for j in favourite if j >= 0]
    assert len(taken) == len(set(taken))
    source, target, tensor = problem.graph.edges
    sent = problem.graph.tensor_bytes[tensor] > 0
    sending = set(zip(source[sent].tolist(), target[sent].tolist(), strict=True))
    assert all((i, j) in sending for i, j in enumerate(favourite) if j >= 0)
    schedule_of(problem, m_sct.solve(problem, SETTINGS))


def test_m_sct_says_where_the_time_was_too_short_for_its_program():
    with pytest.raises(
        OutOfTimeError, match="m-sct ran out of time in building its linear program"
    ):
        m_sct.solve(alike(FORK, FORK_EDGES, 2), SolveSettings(time_limit_seconds=1e-9))


# --- GETF -----------------------------------------------------------------------------------------


def test_getf_groups_devices_by_powers_of_their_speed():
    """Four devices: groups are powers of two of the slowest's speed. Seven: log2 7 / log2 log2 7 is
    1.89, so 2 as well; a device slower than the fastest by more than seven is left out."""
    assert getf.speed_groups(np.array([1.0, 1.9, 2.0, 3.9])).tolist() == [0, 0, 1, 1]
    assert getf.speed_groups(np.array([1.0] * 4)).tolist() == [0] * 4
    slow = np.array([1.0, 8.0, 8.0, 2.0, 2.0, 3.9, 8.0])
    assert getf.speed_groups(slow).tolist() == [-1, 1, 1, 0, 0, 0, 1]


def test_getf_assigns_where_half_is_reached_and_most_speed_is():
    """Shares by group, slowest first. Half of the first is in the fast group, so it must go there;
    of the second only 0.4, so it may go to either, and the slow group has more speed in all."""
    share = np.array([[0.5, 0.5], [0.6, 0.4]])
    total = np.array([[6.0, 2.0], [6.0, 2.0]])
    assert getf._fastest_of_upper_half(share, total).tolist() == [1, 0]


def test_getf_keeps_a_chain_on_the_fast_device():
    """One device of speed 4 and four of speed 1 (the program may leave some of the work to them). A
    chain gains nothing by slow devices: T is 3 only if all of it is on the fast one. Its group is
    then the fast device alone, which runs it without a transfer."""
    chain = {f"o{k}": [1.0, 4.0, 4.0, 4.0, 4.0] for k in range(3)}
    problem = printed(chain, {("o0", "o1"): 1.0, ("o1", "o2"): 1.0})
    where, _, makespan = schedule_of(problem, getf.solve(problem, SETTINGS))
    assert set(where.values()) == {0}
    assert makespan == 3.0


def test_getf_is_m_etf_on_alike_devices():
    problem = alike(FORK, FORK_EDGES, 3)
    one, other = (engine.solve(problem, SETTINGS) for engine in (getf, m_etf))
    assert (one.device == other.device).all() and (one.priority == other.priority).all()


@FEW
@given(small_problems())
def test_getf_places_every_operator_in_its_group(problem):
    until = deadline("getf", SETTINGS)
    allowed = np.array(getf.assigned_devices(problem, until))
    device = getf.solve(problem, SETTINGS).device
    assert allowed[np.arange(len(device)), device].all()
    for key in set(problem.graph.colocation[problem.graph.colocation >= 0].tolist()):
        rows = allowed[problem.graph.colocation == key]
        assert (rows == rows[0]).all()


@FEW
@given(small_problems(4))
def test_getfs_program_is_solved_as_enumeration_solves_it(problem):
    """T is the longest path of operators without transfers, or the time that a device works."""
    graph, instance = problem.graph, Instance(problem)
    heard: list[Progress] = []
    exact = replace(SETTINGS, gap=0.0, time_limit_seconds=60.0)
    found = getf_program.solve(problem, exact, heard.append)

    def step(device: np.ndarray) -> float:
        took = problem.seconds[np.arange(len(device)), device]
        end = np.zeros(len(device))
        for j in graph.topological_order.tolist():
            before = [end[graph.tensor_producer[e]] for e in graph.input_tensors(j).tolist()]
            end[j] = max(before, default=0.0) + took[j]
        return max(float(end.max()), float(np.bincount(device, took).max()))

    devices = range(problem.seconds.shape[1])
    each = (np.array(one) for one in itertools.product(devices, repeat=graph.operator_count))
    best = min(step(device) for device in each if instance.admits(device))
    assert instance.admits(found.device)
    assert step(found.device) == pytest.approx(best, rel=1e-5)
    assert heard[-1].incumbent_seconds == pytest.approx(best, rel=1e-5)


def test_getfs_program_tells_its_own_objective_and_bound():
    """The fast device runs a and then b: 3 s."""
    chain = printed({"a": [1.0, 4.0], "b": [2.0, 4.0]}, {("a", "b"): 1.0})
    own: list[Progress] = []
    asked = replace(SETTINGS, options={"own_progress": own.append})
    getf_program.solve(chain, asked)
    assert own[-1].incumbent_seconds == pytest.approx(3.0)
    assert own[-1].bound_seconds == pytest.approx(3.0)


def test_getfs_program_counts_memory_and_says_where_there_is_none():
    """Three operators of 100 bytes on devices of 200: the fast one cannot hold all of a chain."""
    chain = {f"o{k}": [1.0, 4.0] for k in range(3)}
    held = dict.fromkeys(chain, 100)
    tight = printed(chain, {("o0", "o1"): 1.0}, weight_bytes=held, memory=200)
    assert sorted(getf_program.solve(tight, SETTINGS).device.tolist()) == [0, 0, 1]
    with pytest.raises(InfeasibleError, match="counts memory as a static sum"):
        getf_program.solve(printed(chain, {}, weight_bytes=held, memory=100), SETTINGS)
