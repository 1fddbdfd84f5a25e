"""Findings, a preset and a run, as tests of the reproduction need them."""

from __future__ import annotations

from benchmarks.reproduction import keys
from benchmarks.reproduction.entry import Claim, Entry
from benchmarks.reproduction.findings import Finding, Run, exact
from benchmarks.reproduction.rules import Within
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.our_figures import Between
from placewire.optimizer.published.comparison.presets.preset import (
    Captured,
    Figure,
    Preset,
    Solved,
    equal_servers,
)
from placewire.optimizer.published.comparison.reproducing import Beside


def took(what: str, *numbers: float) -> Finding:
    return exact("m", what, " -> ".join(map(str, numbers)), *numbers)


def late(what: str, low: float | None, high: float | None) -> Finding:
    text = "none" if low is high is None else f"{high or low} s"
    known = () if low is high is None else ((low, high),)
    return Finding(model="m", what=what, text=text, ended="clock", known=known, why="no time left")


def no_fit(what: str) -> Finding:
    return Finding(model="m", what=what, text="none", ended="unplaced", why="too large")


def a_preset(*methods: str) -> Preset:
    figures = [
        Figure(model, f"{method}, two, ms", "-", Solved("two", Method(method), "step"))
        for model in ("p", "q")
        for method in methods
    ]
    model = Captured("placewire.examples.models.mlp:training_step", 8)
    two = equal_servers(2, "rtx4080s", 16, nics=1, gigabits=1.0)
    return Preset("A table", {"p": model, "q": model}, ("rtx4080s",), {"two": two}, figures, ())


CLAIM = Claim("It is so.", "-", (Within(("heft, two, ms",), at_most=2.0, unit="s"),))


ONE_SECOND = Beside("p", "heft, two, ms", "7 ms", "1 s", "", "itself", (Between(1.0, 1.0),))


def a_run_of(entry: Entry, figure: Beside = ONE_SECOND, **changed) -> Run:
    preset = keys.preset_of(entry)
    assert preset is not None
    setting = keys.settings_of(preset)["p", figure.what]
    run = Run(source=entry.name, model="p", key=keys.key_of(entry, "p"),
              limit_seconds=10.0, commit="f00d", machine="m", date="d",
              findings=(Finding.of(figure).model_copy(update={"setting": setting}),))  # fmt: skip
    return run.model_copy(update=changed)
