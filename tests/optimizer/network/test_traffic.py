"""Bandwidth from a stated traffic: in proportion to it, and as much as the NICs allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from placewire.optimizer.network.script_allocation import allocate, even_traffic, load_allocation
from placewire.optimizer.network.traffic import concurrent_rates
from tests.optimizer.cases import cluster, without_pods


def test_the_worked_example() -> None:
    """s0 sends 3 to s1 and 1 to s2 over one rail of 8 each: s0's NIC is full first, at a factor of
    2. On a second rail that s2 lacks, s1 gets all."""
    usable = np.array([[8.0, 8.0], [8.0, 4.0], [8.0, 0.0]])
    weights = np.array([[0.0, 3.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    rates = concurrent_rates(without_pods(usable), weights)
    assert rates[0, 1].tolist() == [6.0, 4.0]
    assert rates[0, 2].tolist() == [2.0, 0.0]
    assert rates[1:].sum() == 0


@pytest.mark.parametrize("weight", [1e308, 1.0, 5e-324])
def test_weights_of_any_size_mean_their_proportions(weight: float) -> None:
    """The sum of the first ones is infinite, and so is what a NIC carries over the last ones."""
    weights = np.array([[0.0, weight, weight], [weight, 0.0, 0.0], [0.0, 0.0, 0.0]])
    rates = concurrent_rates(without_pods(np.full((3, 1), 8e9)), weights)[:, :, 0]
    assert rates.tolist() == [[0.0, 4e9, 4e9], [4e9, 0.0, 0.0], [0.0, 0.0, 0.0]]


@given(
    usable=arrays(float, (4, 2), elements=st.sampled_from([0.0, 1.0, 2.5, 10.0])),
    weights=arrays(float, (4, 4), elements=st.floats(0, 100)),
)
def test_no_nic_is_oversubscribed_one_is_full_and_pairs_are_in_proportion(
    usable: np.ndarray, weights: np.ndarray
) -> None:
    np.fill_diagonal(weights, 0.0)
    weights[weights < 1e-3] = 0.0
    rates = concurrent_rates(without_pods(usable), weights)
    for r in range(2):
        there = usable[:, r]
        taken = np.maximum(rates[:, :, r].sum(axis=1), rates[:, :, r].sum(axis=0))
        assert (taken <= there * (1 + 1e-9)).all()
        on = rates[:, :, r] > 0
        if on.any():
            ratio = rates[:, :, r][on] / weights[on]
            assert ratio == pytest.approx(ratio[0])
            assert np.isclose(taken[there > 0], there[there > 0]).any()


@pytest.mark.parametrize("sharing", ["strict", "guarantee", "even", "job", "unshaped"])
def test_every_sharing_has_its_rates_and_all_talk(sharing, tmp_path) -> None:
    of = cluster(3)
    found = allocate(of, even_traffic(of), sharing, 0.8)
    names = [server.name for server in of.servers]
    assert {(s, t) for s, t, _ in found.talks} == {(s, t) for s in names for t in names if s != t}
    assert bool(found.rates_bits_per_second) == (sharing not in ("job", "unshaped"))
    file = tmp_path / "allocation.json"
    file.write_text(found.model_dump_json())
    assert load_allocation(file) == found
