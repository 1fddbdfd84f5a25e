"""alpha and beta: the computing delays from which on an operator is too heavy for an easy merge.

Thesis, sections 4.1 and 4.3: a smoothed CDF of the computing delays is steep at first and flat at
the end. With sl_max and sl_min its largest and smallest slope, alpha is the delay at which the
slope is (sl_max + sl_min) / 4, and beta the delay at which it is (sl_max + sl_min) / 2 (the text
calls the slopes themselves thresholds), so that beta is never above alpha. The smoothing is our
choice: a logistic function fitted to the CDF. So is the largest slope, that of the function between
the shortest and the longest delay: where its middle lies above the shortest delay, it is steeper
than "at the beginning", where the text takes it, and alpha and beta are smaller. Operators without
cost are left out.

QuickP, section V.C: alpha is the 90th percentile of the delays that are not zero.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from placewire.optimizer.arrays import FloatArray

# Fewer distinct delays do not determine a logistic curve.
_FEWEST_DISTINCT = 4
# Where no curve can be fitted, an operator is light up to this share of the longest delay.
_LIGHT_PART = 0.1
_ICC_PERCENTILE = 90.0


@dataclass(frozen=True)
class Thresholds:
    alpha_seconds: float
    beta_seconds: float


def thesis_thresholds(delays: FloatArray) -> Thresholds:
    """delays float64[n] seconds. Where fewer than 4 differ, or no rising curve is found, both
    thresholds are the largest delay of at most a tenth of the longest; 0 where there is none (of
    equal operators none is light beside another)."""
    delays = np.sort(delays[delays > 0])
    curve = _logistic_fit(delays) if len(np.unique(delays)) >= _FEWEST_DISTINCT else None
    if curve is None:
        light = delays[delays <= _LIGHT_PART * delays.max(initial=0.0)]
        both = float(light.max(initial=0.0))
        return Thresholds(both, both)
    steepness, middle = curve
    # The slope rises up to the middle and falls after it. The thresholds lie where it falls.
    first, last = float(delays[0]), float(delays[-1])
    top = min(max(middle, first), last)
    ends = [_slope(x, steepness, middle) for x in (first, last)]
    both_slopes = _slope(top, steepness, middle) + min(ends)
    alpha, beta = (
        min(max(_falls_to(both_slopes / part, steepness, middle), top), last) for part in (4, 2)
    )
    return Thresholds(alpha, beta)


def icc_alpha(delays: FloatArray) -> float:
    """Seconds; 0 where nothing costs anything. delays float64[n] seconds."""
    positive = delays[delays > 0]
    return float(np.percentile(positive, _ICC_PERCENTILE)) if len(positive) else 0.0


def _logistic_fit(delays: FloatArray) -> tuple[float, float] | None:
    """(steepness per second, middle in seconds) of the logistic curve nearest to the CDF of sorted
    delays; None where no rising curve is found."""
    from scipy.optimize import OptimizeWarning, curve_fit

    # In units of the median, so that the fit sees numbers near 1.
    unit = float(np.median(delays))
    share = np.arange(1, len(delays) + 1) / len(delays)
    low, high = np.quantile(delays, [0.25, 0.75]) / unit
    guess = (min(4.0 / max(high - low, 1e-9), 1e6), 1.0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizeWarning)
            (steepness, middle), _ = curve_fit(_logistic, delays / unit, share, p0=guess)
    except RuntimeError:  # the fit did not converge
        return None
    if not (np.isfinite(middle) and 0 < steepness < np.inf):
        return None
    return float(steepness) / unit, float(middle) * unit


def _logistic(x: Any, steepness: float, middle: float) -> Any:
    """1 / (1 + exp(-steepness (x - middle)))"""
    return 0.5 * (1.0 + np.tanh(0.5 * steepness * (x - middle)))


def _slope(x: float, steepness: float, middle: float) -> float:
    value = _logistic(x, steepness, middle)
    return float(steepness * value * (1.0 - value))


def _falls_to(slope: float, steepness: float, middle: float) -> float:
    """Where the falling side of the curve has this slope; the middle where it is never so steep."""
    if slope <= 0.0:
        return np.inf
    root = np.sqrt(max(1.0 - 4.0 * slope / steepness, 0.0))
    return float(middle + np.log((1.0 + root) / (1.0 - root)) / steepness) if root < 1 else np.inf
