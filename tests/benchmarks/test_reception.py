"""How a script's NICs are used: from samples of their counters to numbers and a picture."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.job import vgg16_on_two_nics as two_nics
from benchmarks.job.nic_samples import Sample, sample_in, samples_in
from benchmarks.job.reception import (
    Reception,
    Step,
    Use,
    carrying_seconds,
    parts_of_rate,
    reception_of,
    steps_of,
    use_of,
)
from benchmarks.job.reception_picture import HEIGHT, WIDTH, picture, svg

# So that a NIC carries 1 MB a second.
RATE = 8e6
NICS = ("nic0", "nic1")
PLAIN = """[W socket.cpp] a warning
step 1.500000 ended 101.500000
step 1.000000 ended 103.000000
"""
APPLIED = """  24.8 s      1 process; collectives from 64 KiB on are cut: a 50%, b 50%
  53.1 s    rank 1 | [1] step 1.400000 ended 101.400000
  53.9 s    rank 0 | [0] step 1.500000 ended 101.500000
  55.2 s    rank 0 | [0] step 1.000000 ended 103.000000
  84.9 s  rank 0's server has sent 397.4 MiB on a, 397.6 MiB on b
"""
STEPS = (Step(100.0, 101.5), Step(102.0, 103.0))


def test_steps_are_those_that_rank_0_printed_however_it_was_started() -> None:
    assert steps_of(PLAIN) == steps_of(APPLIED) == STEPS
    with pytest.raises(ValueError, match="rank 0 printed no step"):
        steps_of(APPLIED.replace("rank 0", "rank 2"))


def sampled(*counts: tuple[float, int, int]) -> list[Sample]:
    """(seconds, received by nic0, received by nic1); each NIC sends ten bytes more."""
    return [
        Sample(seconds, {"nic0": a + 10, "nic1": b + 10}, {"nic0": a, "nic1": b})
        for seconds, a, b in counts
    ]


def had(*counts: tuple[float, int, int], steps: tuple[Step, ...] = STEPS) -> Reception:
    return reception_of(sampled(*counts), steps, NICS, RATE)


# Four seconds, from the sample before the first step to the one after the last.
ALL_ON_ONE: tuple[tuple[float, int, int], ...] = (
    (98.5, 0, 0), (99.5, 2_000_000, 5), (100.5, 3_000_000, 5), (101.5, 3_500_000, 5),
    (102.5, 3_500_000, 5), (103.5, 4_000_000, 10_005), (104.5, 9_000_000, 10_005),
)  # fmt: skip


def test_what_came_before_the_first_step_or_after_the_last_is_left_out() -> None:
    received = had(*ALL_ON_ONE)
    assert received.seconds == (0.0, 1.0, 2.0, 3.0, 4.0)
    assert received.step_end_seconds == (2.0, 3.5)
    first, second = received.nics
    assert (first.nic, second.nic) == NICS
    assert first.received_bytes == (2_000_000, 3_000_000, 3_500_000, 3_500_000, 4_000_000)
    assert second.received_bytes == (5, 5, 5, 5, 10_005)


@pytest.mark.parametrize("missing", [slice(2, None), slice(None, 5)])
def test_samples_that_do_not_reach_over_all_steps_are_refused(missing: slice) -> None:
    with pytest.raises(ValueError, match="NICs were not sampled during all steps"):
        had(*ALL_ON_ONE[missing])


def test_use_is_what_a_nic_received_of_what_it_could() -> None:
    received = had(*ALL_ON_ONE)
    assert parts_of_rate(received, received.nics[0]) == (1.0, 0.5, 0.0, 0.5)
    assert use_of(received, received.nics[0]) == Use(
        bytes=1_000_000, mean=0.5, peak=1.0, at_full_rate_seconds=1.0
    )
    assert use_of(received, received.nics[1]) == Use(
        bytes=5_000, mean=0.0025, peak=0.01, at_full_rate_seconds=0.005
    )


def test_gradients_arrive_while_any_nic_receives_a_tenth_of_its_rate() -> None:
    assert carrying_seconds(had(*ALL_ON_ONE)) == pytest.approx(3.0 / 2)
    halves = ((100.0, 0, 0), (101.0, 99_000, 99_000), (102.0, 198_000, 200_000), (103.0, 0, 0))
    assert carrying_seconds(had(*halves)) == pytest.approx(1.0 / 2)


def runs() -> dict[str, Reception]:
    """Before: 4 s; after: 2 s."""
    short = ((99.5, 0, 0), (100.5, 1_000_000, 500_000), (101.5, 1_500_000, 1_250_000))
    after = had(*short, steps=(Step(99.5, 100.5), Step(100.5, 101.5)))
    return {"before: <one NIC>": had(*ALL_ON_ONE), "after": after}


def test_all_runs_and_nics_are_drawn_on_the_same_scales() -> None:
    drawn = picture(runs())
    before, after = drawn.panels
    assert (before.title, after.title) == ("before: <one NIC>", "after")
    # 4 s are WIDTH pixels, and its full rate is HEIGHT.
    quarter, half = WIDTH / 4, HEIGHT / 2
    assert before.lanes[0].areas == (
        f"0,{HEIGHT} 0,0 {quarter:g},0 {quarter:g},{half:g} {2 * quarter:g},{half:g} "
        f"{2 * quarter:g},{HEIGHT} {3 * quarter:g},{HEIGHT} {3 * quarter:g},{half:g} "
        f"{WIDTH},{half:g} {WIDTH},{HEIGHT}",
    )
    assert after.lanes[1].areas == (
        f"0,{HEIGHT} 0,{half:g} {quarter:g},{half:g} {quarter:g},{HEIGHT / 4:g} "
        f"{2 * quarter:g},{HEIGHT / 4:g} {2 * quarter:g},{HEIGHT}",
    )
    assert before.step_marks == (2 * quarter, 3.5 * quarter)
    assert after.step_marks == (quarter, 2 * quarter)
    assert before.lanes[0].words == "nic0 receives 50% of its rate, at most 100%"
    tops = [lane.top for panel in drawn.panels for lane in panel.lanes]
    assert all(below - above > HEIGHT for above, below in pairwise(tops))


def test_a_nic_that_was_faster_than_its_rate_for_a_moment_stays_within_its_lane() -> None:
    burst = had((100.0, 0, 0), (101.0, 1_250_000, 0), (104.0, 2_000_000, 0))
    drawn = picture({"burst": burst, **runs()})
    highest = drawn.panels[0].lanes[0].areas[0].split()[1]
    assert highest.endswith(",0")
    full_rate = {words: at for at, words in drawn.percent_ticks}["100%"]
    assert full_rate == pytest.approx(HEIGHT / 5, abs=0.1)


def test_the_picture_is_an_svg_with_every_lane_and_mark() -> None:
    root = ElementTree.fromstring(svg(picture(runs())))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    titles = [one.text for one in root.iter(f"{space}text") if one.get("class") == "title"]
    assert titles == ["before: <one NIC>", "after"]
    colours = [one.get("class") for one in root.iter(f"{space}polygon")]
    assert colours == ["rail0", "rail1"] * 2
    # Two steps in each of four lanes.
    assert sum(one.get("class") == "step" for one in root.iter(f"{space}line")) == 8


def test_the_counters_of_a_real_interface_are_sampled_while_the_block_runs() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here,
        samples_in([], ("lo",), os.environ) as samples,
    ):
        here.bind(("127.0.0.1", 0))
        first = sample_that(samples, lambda one: True)
        here.sendto(bytes(1000), here.getsockname())
        later = sample_that(samples, lambda one: min(more(first, one)) >= 1000)
        once = sample_in([], ("lo",), os.environ)
    assert once.seconds > later.seconds > first.seconds
    assert min(more(later, once)) >= 0


def sample_that(samples: Callable[[], list[Sample]], fits: Callable[[Sample], bool]) -> Sample:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if found := [one for one in samples() if fits(one)]:
            return found[0]
        time.sleep(0.05)
    raise AssertionError("there was no such sample in a minute")


def more(first: Sample, later: Sample) -> tuple[int, int]:
    """What the loopback interface sent and received between them."""
    return (
        later.sent_bytes["lo"] - first.sent_bytes["lo"],
        later.received_bytes["lo"] - first.received_bytes["lo"],
    )


def test_a_sampler_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    # It ignores SIGTERM, with which samplers are ended.
    inside = ["sh", "-c", f"trap '' TERM; touch {begun}; exit 3"]
    with pytest.raises(RuntimeError, match="ended with 3"), samples_in(inside, (), os.environ):
        until = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.01)


def test_what_it_gains_is_told_of_the_gradients_and_of_the_whole_step() -> None:
    received = had(*ALL_ON_ONE)
    took = {two_nics.ONE: 13.32, two_nics.BOTH: 10.35, two_nics.APPLIED: 10.44}
    runs = {how: two_nics.Trained(received, seconds) for how, seconds in took.items()}
    _, gains, _ = two_nics.notes_of(runs)
    assert "Gradients then arrive in 1.00 of the time that they take on one NIC" in gains
    assert "the whole step takes 0.78 of its time on one NIC, and 1.01 of that on both." in gains
