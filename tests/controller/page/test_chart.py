"""Scales and lines of the page's pictures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewire.controller.page.chart import MOST_POINTS, Scale, lines
from placewire.controller.page.step_chart import step_chart, value_charts
from tests.controller.page.reports import a_report


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 9))
def test_ticks_are_round_within_the_scale_and_not_too_many(
    low: float, span: float, most: int
) -> None:
    scale = Scale(low, low + span, 100)
    ticks = scale.ticks(most)
    room = 1e-6 * max(span, abs(low))
    assert len(ticks) <= most + 1
    assert all(low - room <= tick <= low + span + room for tick in ticks)


@pytest.mark.parametrize(
    ("high", "ticks"),
    [(10.0, (0, 5, 10)), (25.0, (0, 10, 20)), (120.0, (0, 50, 100)), (0.3, (0, 0.1, 0.2, 0.3))],
)
def test_ticks_are_of_the_kind_that_people_read(high: float, ticks: tuple[float, ...]) -> None:
    assert Scale(0.0, high, 100).ticks(3) == ticks


def test_a_scale_without_a_span_has_one_tick() -> None:
    assert Scale(3.0, 3.0, 100).ticks() == (3.0,) and Scale(3.0, 3.0, 100).at(3.0) == 0.0


def test_a_missing_value_ends_a_line_and_no_peak_of_many_points_is_lost() -> None:
    x, y = Scale(0, 4, 4), Scale(0, 10, 10, upwards=True)
    drawn = lines([0, 1, 2, 3, 4], [1.0, 2.0, None, 3.0, None], x, y)
    assert [line.points for line in drawn] == ["0,9 1,8", "3,7 4,7"]
    values: list[float | None] = [0.0] * 10_000
    values[7_777] = 10.0
    (line,) = lines(range(10_000), values, Scale(0, 10_000, 100), y)
    points = line.points.split()
    assert len(points) <= MOST_POINTS and sum(point.endswith(",0") for point in points) == 1


def test_numbers_that_are_of_several_steps_each_stand_at_the_first_of_these() -> None:
    report = a_report(
        first_step=100, steps=18, steps_each=4, step_seconds=(1.0, 3.0, 2.0, 1.0, 1.0),
        losses=(5.0, 4.0, 3.0, 2.0, 1.0),
    )  # fmt: skip
    chart, (losses,) = step_chart(report), value_charts(report)
    assert chart is not None
    assert chart.words == "Time of the longest of each 4 steps, of its slowest device"
    assert losses.words == "The loss of each 4th step"
    for drawn in (chart, losses):
        assert [words for _, words in drawn.step_ticks][-1] == "116"
