"""alpha and beta: the delays at the thesis' slopes of the logistic fit, and those without a fit."""

from __future__ import annotations

import numpy as np
import pytest

from placewire.optimizer.published.reductions.thresholds import icc_alpha, thesis_thresholds


def logistic_delays(steepness, middle, count=400):
    """Delays whose CDF is the logistic function, up to the distance between two delays."""
    share = (np.arange(count) + 0.5) / count
    delays = middle + np.log(share / (1 - share)) / steepness
    return delays[delays > 0]


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_thresholds_lie_at_their_slopes_of_the_curve(scale):
    steepness, middle = 2.0 / scale, 5.0 * scale
    delays = logistic_delays(steepness, middle)

    def slope(x):
        value = 1 / (1 + np.exp(-steepness * (x - middle)))
        return steepness * value * (1 - value)

    # The slope is largest in the middle, and smallest at one of the two ends.
    both = steepness / 4 + min(slope(delays.min()), slope(delays.max()))
    found = thesis_thresholds(delays)
    assert slope(found.alpha_seconds) == pytest.approx(both / 4, rel=0.02)
    assert slope(found.beta_seconds) == pytest.approx(both / 2, rel=0.02)
    assert middle < found.beta_seconds < found.alpha_seconds < delays.max()


def test_operators_without_cost_do_not_count():
    delays = logistic_delays(2.0, 5.0)
    padded = np.concatenate([np.zeros(1000), delays])
    assert thesis_thresholds(padded) == thesis_thresholds(delays)
    assert icc_alpha(padded) == icc_alpha(delays) == pytest.approx(np.percentile(delays, 90))


@pytest.mark.parametrize(
    ("delays", "expected"),
    [([], 0.0), ([0.0], 0.0), ([2.0] * 50, 0.0), ([1.0, 9.0], 0.0), ([1.0, 2.0, 100.0], 2.0)],
)
def test_without_a_curve_light_is_a_tenth_of_the_longest(delays, expected):
    found = thesis_thresholds(np.array(delays))
    assert found.alpha_seconds == found.beta_seconds == expected


def test_thresholds_stay_among_the_delays():
    generator = np.random.default_rng(3)
    for _ in range(30):
        count = int(generator.integers(1, 40))
        delays = np.exp(generator.normal(-10, generator.uniform(0.01, 4), count))
        found = thesis_thresholds(delays)
        assert 0 <= found.beta_seconds <= found.alpha_seconds <= delays.max()


def test_icc_alpha_of_nothing():
    assert icc_alpha(np.zeros(3)) == 0.0
