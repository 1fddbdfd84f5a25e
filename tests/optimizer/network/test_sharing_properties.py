"""Properties that hold for every placement under each sharing, on random problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.kernels.simulation.transfers import lending_ceilings
from placewire.optimizer.network.nics import network_limits, widest_rates
from placewire.optimizer.rates.allocator import allocate, equal_rates, starting_rates, used_pairs
from placewire.optimizer.simulation.simulate import recorded_priority, simulate
from tests.drawn_examples import examples
from tests.optimizer.problems import able_devices, problems

ROUNDING = 1 + 1e-7


def uncontended_step(problem, device, order):
    """The step with operators in these orders and each transfer alone, at its pair's widest
    rate."""
    alone = problem.alone(widest_rates(problem.usable))
    setup, rate = alone.setup, alone.rate
    graph = problem.graph
    finish = np.full(graph.operator_count, -1.0)
    place = [0] * len(order)
    while any(place[d] < len(row) for d, row in enumerate(order)):
        for d, row in enumerate(order):
            while place[d] < len(row):
                i = row[place[d]]
                at = finish[row[place[d] - 1]] if place[d] else 0.0
                sources = [int(graph.tensor_producer[e]) for e in graph.input_tensors(i)]
                if any(finish[j] < 0 for j in sources):
                    break
                for j, e in zip(sources, graph.input_tensors(i).tolist(), strict=True):
                    bits, a = graph.tensor_bytes[e] * 8.0, device[j]
                    took = setup[a, d] + bits / rate[a, d] if a != d and bits else 0.0
                    at = max(at, finish[j] + took)
                finish[i] = at + problem.seconds[i, d]
                place[d] += 1
    return finish.max(initial=0.0)


def drawn(data, sharing):
    problem = replace(data.draw(problems(models=("contended",))), sharing=sharing)
    device = data.draw(able_devices(problem))
    rates = starting_rates(problem, device) if problem.decides_rates else None
    return problem, device, simulate(problem, device, recorded_priority(problem), None, rates)


@pytest.mark.parametrize("sharing", ["job", "guarantee", "unshaped", "strict", "even"])
@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(st.data())
def test_no_step_is_shorter_than_without_contention(sharing, data):
    problem, device, timeline = drawn(data, sharing)
    if problem.cuts_equally:
        # A small message, which is not cut, or one that leaves a slow rail out, is quicker.
        problem = replace(problem, backend="gloo")
    least = uncontended_step(problem, device, timeline.order)
    assert least <= timeline.step_seconds * ROUNDING


@pytest.mark.parametrize("sharing", ["job", "guarantee", "unshaped", "strict", "even"])
@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(st.data())
def test_no_nic_carries_more_than_it_can(sharing, data):
    problem, _, timeline = drawn(data, sharing)
    for busy in (timeline.transmit_busy_seconds, timeline.receive_busy_seconds):
        assert (busy <= timeline.step_seconds * ROUNDING).all()
    nics = problem.cluster.nic_rates
    job = (timeline.transmit_busy_seconds + timeline.receive_busy_seconds) * nics
    both = job + timeline.background_bits
    assert (both <= 2 * nics * timeline.step_seconds * ROUNDING + 1.0).all()
    wanted = 2 * problem.cluster.background * timeline.step_seconds
    assert (timeline.background_bits <= wanted * ROUNDING).all()


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(st.data())
def test_borrowing_never_costs_where_messages_are_not_cut(data):
    """On one rail, in the same orders: no transfer is later than with the minimums as caps."""
    problem, device, strict = drawn(data, "strict")
    if len(problem.cluster.rails) > 1:
        return
    lending = replace(problem, sharing="guarantee")
    rates = starting_rates(problem, device)
    lent = simulate(lending, device, None, strict.order, rates)
    assert (lent.finish <= strict.finish * ROUNDING).all()


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(st.data())
def test_what_may_be_borrowed_fits_into_every_receiver_and_uplink(data):
    problem, device, _ = drawn(data, "guarantee")
    nics, minimums = problem.usable_nic_rates, starting_rates(problem, device)
    limits = network_limits(problem.usable)
    highest = lending_ceilings(nics, limits.groups, limits.capacity, np.ascontiguousarray(minimums))
    assert (highest.sum(axis=0) <= nics * ROUNDING).all()
    uplinks = slice(2 * len(nics), None)
    assert (limits.load(highest)[:, uplinks] <= limits.capacity[:, uplinks] * ROUNDING).all()
    assert (highest >= minimums / ROUNDING).all()
    assert (highest <= widest_rates(problem.usable) * ROUNDING).all()


@pytest.mark.parametrize("sharing", ["strict", "guarantee"])
@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(st.data())
def test_allocated_rates_fit_and_are_no_worse_than_rules(sharing, data):
    problem, device, first = drawn(data, sharing)
    rates = allocate(problem, device, first.order)
    usable = problem.usable_nic_rates
    assert (rates.sum(axis=1) <= usable * (1 + 1e-9)).all()
    assert (rates.sum(axis=0) <= usable * (1 + 1e-9)).all()
    step = simulate(problem, device, None, first.order, rates).step_seconds
    assert step <= first.step_seconds * ROUNDING
    equal = equal_rates(problem, used_pairs(problem, device))
    assert (equal.sum(axis=1) <= usable * (1 + 1e-9)).all()
    assert (equal.sum(axis=0) <= usable * (1 + 1e-9)).all()
    assert step <= simulate(problem, device, None, first.order, equal).step_seconds * ROUNDING
