"""What docs/reproduction.md says of runs: older ones, and those of other settings."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.reproduction import keys
from benchmarks.reproduction.document import document
from benchmarks.reproduction.entry import Claim, Entry, FromOwn, FromReport, FromTests
from benchmarks.reproduction.findings import Run
from benchmarks.reproduction.rules import LESS, AtMost
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.presets.preset import (
    Delays,
    Figure,
    FusedAt,
    Solved,
    equal_servers,
)
from tests.benchmarks.reproduction_examples import CLAIM, a_preset, a_run_of, took


def test_what_older_sources_found_is_marked(monkeypatch):
    preset = replace(a_preset("heft"), differs=("these settings differ",))
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: preset), (CLAIM,))
    run = a_run_of(entry)
    kept = {(run.source, run.model): run}
    page = document([entry], (), kept)
    assert "| p | heft, two, ms | - | 1 s |" in page
    assert "holds so far (1 of 1; 1 not run) |" in page
    assert "How the settings differ:" in page and "The sources or the settings" not in page
    assert "- A solve had at most 10 s here" in page
    older = (
        "| p (older) | heft, two, ms | - | 1 s |", "holds so far (1 of 1; 1 not run), older |",
        "How the settings differ, of the next run:", "It is made anew by",
        "at commit f00d", "The sources have changed since.",
    )  # fmt: skip
    monkeypatch.setattr(keys, "sources_digest", lambda folder: "other sources")
    page = document([entry], (), kept)
    assert [one for one in older if one not in page.replace("\n", " ")] == []
    assert "at most 10 s here" not in page, "the limit of an older run is no setting of this preset"


THREE = equal_servers(3, "rtx4080s", 16, nics=1, gigabits=1.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda preset: replace(preset, clusters={"two": THREE}),
        lambda preset: replace(preset, devices=("v100",)),
        lambda preset: replace(
            preset, models={**preset.models, "p": replace(preset.models["p"], inference=True)}
        ),
        lambda preset: replace(
            preset,
            figures=[replace(one, asked=Solved("two", Method("heft", gap=0.1), "step"))
                     for one in preset.figures],
        ),
        lambda preset: replace(
            preset,
            figures=[replace(one, asked=replace(one.asked, figure="own"))
                     for one in preset.figures],
        ),
    ],
    ids=["cluster", "devices", "model", "method", "figure"],
)  # fmt: skip
def test_what_was_found_for_other_settings_is_not_run_yet(change):
    made = a_preset("heft")
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: made), (CLAIM,))
    run = a_run_of(entry)
    other = replace(entry, source=FromOwn(lambda: change(made)))
    page = document([other], (), {(run.source, run.model): run})
    assert "| all | 0 | 0 | 0 | 0 | 1 | 0 | 0 |" in page
    assert page == document([other], (), {})
    # What only names something else, or prints another number, is the same question.
    same = replace(made, title="A figure", clusters={"two": made.clusters["two"], "three": THREE})
    assert keys.settings_of(same) == keys.settings_of(made)


@pytest.mark.parametrize("asked", [Delays("alpha"), FusedAt(2.0)], ids=["delays", "fusion"])
def test_what_names_no_cluster_is_another_question_on_another_first_one(asked):
    """It is asked of the preset's first cluster."""
    made = a_preset()
    made = replace(made, figures=[Figure("p", "a figure", "-", asked)])
    two = made.clusters["two"]

    def setting(clusters):
        return keys.settings_of(replace(made, clusters=clusters))

    same = setting({"first": two, "then": THREE})
    assert same == setting({"two": two})
    assert same != setting({"first": THREE, "then": two})


def test_a_figure_that_is_asked_otherwise_is_left_out_alone():
    made = a_preset("heft", "peft")
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: made), (CLAIM,))
    run = a_run_of(entry)
    page = document([entry], (), {(run.source, run.model): run})
    assert "| p | heft, two, ms | - | 1 s |" in page
    assert "| p | peft, two, ms | - | not run yet |" in page


def test_what_is_claimed_and_not_asked_is_told_with_the_reason():
    unasked = ("that it is cheap: nothing here has a price",)
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft")), (CLAIM,),
                  unasked=unasked)  # fmt: skip
    told = "Claimed as well, and not asked:\n\n- That it is cheap: nothing here has a price.\n"
    assert told in document([entry], (), {})
    assert "not asked" not in document([replace(entry, unasked=())], (), {})


def test_the_page_is_the_same_whichever_model_was_run_first():
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft")), (CLAIM,))
    p, q = a_run_of(entry), a_run_of(entry, model="q")
    runs = {(run.source, run.model): run for run in (q, p)}
    assert "(p, q)" in document([entry], (), runs)


def test_a_claim_about_an_older_run_counts_apart():
    entry = Entry("A paper", "table 1", "steps", FromOwn(lambda: a_preset("heft")), (CLAIM,))
    run = a_run_of(entry)
    for key, count in ((run.key, "0"), ("other", "1")):
        run = run.model_copy(update={"key": key})
        page = document([entry], (), {(run.source, run.model): run})
        assert f"| all | 0 | 1 | 0 | 0 | 0 | 0 | {count} |" in page


def test_a_worked_example_is_older_after_a_change_of_what_it_tests(monkeypatch):
    files = ("tests/controller/compile/test_thesis_figure_3_2.py",)
    entry = Entry("A paper", "figure 1", "an example", FromTests(files, "figure"))
    digests = dict.fromkeys(("controller", "examples/models", "optimizer"), "0")
    monkeypatch.setattr(keys, "sources_digest", digests.__getitem__)
    before = keys.key_of(entry)
    for folder in digests:
        digests[folder] = "1"
        assert keys.key_of(entry) != before
        digests[folder] = "0"
    assert keys.key_of(entry) == before


@pytest.mark.parametrize(
    ("disturbed", "shorter", "longer"),
    [(False, "holds (1 of 1)", "holds (1 of 1)"), (True, "holds (1 of 1)", "not run undisturbed")],
)
def test_a_time_of_a_report_is_an_upper_limit_beside_other_programs(
    disturbed: bool, shorter: str, longer: str
):
    source = FromReport(
        "docs/benchmarks/job.md", "8. A script", "make", times=("step, s",), picture="drawn.svg"
    )
    claims = (
        Claim("It is shorter.", "-", (AtMost("step, s", ("long, s",), LESS),)),
        Claim("It is longer.", "-", (AtMost("short, s", ("step, s",), LESS),)),
    )
    entry = Entry("A paper", "figure 1", "steps", source, claims)
    findings = took("short, s", 1.0), took("step, s", 2.0), took("long, s", 3.0)
    run = Run(source=entry.name, key=keys.key_of(entry), commit="c", machine="m", date="d",
              disturbed=disturbed, findings=findings)  # fmt: skip
    page = document([entry], (), {(run.source, run.model): run})
    verdicts = [line.split(" | ")[-1].removesuffix(" |") for line in page.splitlines()
                if re.match(r"\| [12] \| - ", line)]  # fmt: skip
    assert verdicts == [shorter, longer]
    assert "![Ours of A paper, figure 1](drawn.svg)" in page
    assert ("beside other programs" in page.partition("It is made by")[2]) == disturbed
