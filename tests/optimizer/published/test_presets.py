"""Tests that models, clusters and figures of every preset hold together, and runs a small one."""

from __future__ import annotations

import csv
import importlib
from dataclasses import replace

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.profile.devices import DEVICES
from placewire.optimizer.published.comparison import presets
from placewire.optimizer.published.comparison.captures import NotCapturedError, captured_graph
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.presets import PRESETS, load_preset
from placewire.optimizer.published.comparison.presets.preset import (
    Captured,
    Delays,
    Figure,
    FusedAt,
    Preset,
    Reduced,
    Saved,
    Solved,
    at_papers_times,
    equal_servers,
    shortened,
)
from placewire.optimizer.published.comparison.reasons import Reasons
from placewire.optimizer.published.comparison.reproducing import beside_csv, beside_lines, reproduce


@pytest.mark.parametrize("name", tuple(PRESETS))
def test_a_preset_holds_together(name):
    preset = load_preset(name)
    assert bool(preset.figures) != bool(preset.refusal)
    assert set(preset.devices) <= set(DEVICES)
    for cluster in preset.clusters.values():
        assert {device.type for device in cluster.devices} <= set(preset.devices)
    told = [(figure.model, figure.what) for figure in preset.figures]
    assert len(set(told)) == len(told)
    for figure in preset.figures:
        assert figure.model in preset.models
        assert figure.paper
        assert (figure.asked is None) == bool(figure.why)
        if isinstance(figure.asked, Solved | Reduced):
            assert figure.asked.on in preset.clusters
        if isinstance(figure.asked, Saved):
            assert {figure.asked.slow.on, figure.asked.fast.on} <= set(preset.clusters)


@pytest.mark.parametrize("paper", sorted({place.split(":")[0] for place in PRESETS.values()}))
def test_every_table_and_figure_of_a_paper_is_a_preset(paper):
    module = importlib.import_module(f"{presets.__name__}.{paper}")
    made = {name for name in vars(module) if name.startswith(("table_", "figure_"))}
    assert {f"{paper}:{name}" for name in made} <= set(PRESETS.values())


def test_a_model_that_is_not_there_is_named(tmp_path):
    said: list[str] = []
    gone = Captured("placewire.examples.models.gone:training_step", 1)
    with pytest.raises(NotCapturedError, match=r"there is no model placewire.examples.models.gone"):
        captured_graph("Gone", gone, ("v100",), tmp_path, said.append)
    with pytest.raises(NotCapturedError, match="has no training_stride"):
        captured_graph("m", Captured("placewire.examples.models.mlp:training_stride", 1), ("v100",),
                       tmp_path, said.append)  # fmt: skip
    assert said == []


def test_figures_stand_beside_the_papers_and_refusals_beside_those(tmp_path):
    servers = equal_servers(2, "rtx4080s", 16, nics=2, gigabits=10.0)
    one = Solved("two", Method("single", time_limit_seconds=5.0), "step")
    program = Method("thesis-p3-fixed", "thesis", "thesis", gap=0.1, time_limit_seconds=60.0)
    preset = Preset(
        "A paper, table 1", {"MLP": Captured("placewire.examples.models.mlp:training_step", 8),
                             "Gone": Captured("placewire.examples.models.gone:training_step", 8)},
        ("rtx4080s",), {"two": servers},
        [
            Figure("MLP", "step", "1.5 ms", one),
            Figure("MLP", "search", "2", replace(one, figure="search")),
            Figure("MLP", "speed-up", "1", replace(one, figure="speedup")),
            Figure("MLP", "saved", "11 %", Saved(one, one)),
            Figure("MLP", "solver", "0.7", Solved("two", program, "solver")),
            Figure("MLP", "solver of none", "0.7", replace(one, figure="solver")),
            Figure("MLP", "operators", "9 -> 3", Reduced("two", "thesis", "operators")),
            Figure("MLP", "by modules", "3", Reduced("two", "spotlight", "operators")),
            Figure("MLP", "alpha", "-", Delays("alpha")),
            Figure("MLP", "path", "-", FusedAt(0.0)),
            Figure("MLP", "learned", "-", Solved("two", Method("oracle"), "step")),
            Figure("MLP", "HRL", "4 h", None, "HRL is not here"),
            Figure("Gone", "step", "1", one),
        ],
        ("theirs ran, ours is simulated",),
    )  # fmt: skip
    said: list[str] = []
    found, rows = reproduce(preset, tmp_path, said.append)
    ours = {(figure.model, figure.what): figure for figure in found}
    assert ours["MLP", "step"].ours.endswith(" ms")
    assert ours["MLP", "speed-up"].ours == "1.00x"
    assert ours["MLP", "saved"].ours == "0.0%"
    assert ours["MLP", "solver"].ours.endswith(" s")
    assert ours["MLP", "solver of none"].why.endswith(
        "single was not within 0% of its own bound: it says no bound"
    )
    assert ours["MLP", "operators"].ours.count(" -> ") == 1
    assert ours["MLP", "path"].ours.startswith("+0.0%, ")
    assert ours["MLP", "by modules"].ours.count(" -> ") == 1
    assert ours["MLP", "learned"].why == "engine oracle is not in the catalogue"
    assert ours["MLP", "HRL"].why == "HRL is not here"
    assert [one.low for one in ours["MLP", "operators"].known] == [
        float(part.replace(",", "")) for part in ours["MLP", "operators"].ours.split(" -> ")
    ]
    assert ours["MLP", "step"].ended == "itself" and ours["Gone", "step"].ended == "none"
    assert ours["Gone", "step"].why == "there is no model placewire.examples.models.gone"
    assert len(rows) == 2
    lines = beside_lines(preset, found)
    assert all(len(line) <= 100 for line in lines)
    assert "- theirs ran, ours is simulated" in lines
    assert len(list(csv.reader(beside_csv(found).splitlines()))) == 1 + len(found)
    # Again: neither captured nor solved anew.
    again: list[str] = []
    assert reproduce(preset, tmp_path, again.append)[0] != []
    assert not [line for line in again if line.startswith(("capturing", "[1/1]"))]


def test_reasons_that_differ_in_figures_alone_are_told_once():
    reasons = Reasons()
    said = ["out of time after 2.5 s", "no GPU here", "out of time after 2.75 s"]
    assert [reasons.number(why) for why in said] == [1, 2, 1]
    assert reasons.number("icc-p1 is late", "AlexNet: late") == 3
    assert reasons.number("icc-p2 is late") == 4
    assert reasons.lines[2] == "(3) AlexNet: late"
    assert reasons.number("ResNet-50: 'conv_1' takes 3,000 s") == 5
    assert reasons.number("ResNet-50: 'conv_2' takes 2.5 s") == 5
    assert reasons.number("ResNet-101: 'conv_2' takes 2.5 s") == 6


def test_a_quick_look_shortens_solves_and_says_so():
    preset = load_preset("hsdag-table-3")
    quick = shortened(preset, 5.0)
    asked = [one for figure in quick.figures if isinstance(figure.asked, Saved)
             for one in (figure.asked.slow, figure.asked.fast)]  # fmt: skip
    assert {one.method.time_limit_seconds for one in asked} == {5.0}
    assert "a solve has at most 5 s" in quick.differs[0]
    assert shortened(preset, 1e6) is preset
    without_solves = load_preset("celeritas-table-2")
    assert shortened(without_solves, 1.0) is without_solves


def limits(preset: Preset) -> dict[str, float]:
    """Of the figures that take one solve."""
    return {
        f"{figure.model}, {figure.what}": figure.asked.method.time_limit_seconds
        for figure in preset.figures
        if isinstance(figure.asked, Solved)
    }


def test_a_solve_may_have_the_papers_own_time():
    """Table V: from 15 s of m-SCT, which keeps the preset's, to 38 min of Moirai."""
    preset = load_preset("moirai-table-v")
    longer = at_papers_times(preset)
    of, now = limits(preset), limits(longer)
    for what, before, after in (
        ("GPT-3 330M, m-SCT, original, s", 120.0, 120.0),
        ("AlphaFold2 3.2B, Moirai, original, s", 120.0, 38.42 * 60),
        ("GPT-3 330M, GETF, coarsened, s", 120.0, 120.0),
        ("Swin 13B, GETF, coarsened, s", 120.0, 14.95 * 60),
    ):
        assert (of[what], now[what]) == pytest.approx((before, after))
    assert "as long as the paper's own took" in longer.differs[0]
    assert max(limits(shortened(longer, 600.0)).values()) == 600.0
    unsaid = load_preset("thesis-table-5.1")
    assert at_papers_times(unsaid) is unsaid


def test_the_paper_of_an_inference_gets_its_forward_pass_in_half_precision(tmp_path):
    model = Captured("placewire.examples.models.mlp:training_step", 4, inference=True, half=True)
    found = captured_graph("mlp", model, ("p4",), tmp_path, lambda line: None)
    graph = load_graph(found.file)
    assert graph.notes["inference"] and graph.notes["half"]
    assert "update" not in graph.types
    whole = captured_graph("mlp", replace(model, half=False), ("p4",), tmp_path, lambda line: None)
    # All of the model's weights take two bytes, and four.
    assert 2 * graph.weight_bytes.sum() == load_graph(whole.file).weight_bytes.sum() > 0


def test_what_cannot_be_had_is_refused_in_words(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["compare", "--preset", "celeritas-table-5", "--out", out]) == 3
    assert "controller evaluate MODEL" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--preset", "icc-table-1", "--out", out, "--engines", "heft"])
    assert ended.value.code == 2
    assert "leave --engines out" in capsys.readouterr().err


def test_tables_of_the_thesis_say_that_their_sort_is_not_its_own():
    """Wherever a program is solved, which the presets do under model thesis."""
    for name in (one for one in PRESETS if one.startswith("thesis-")):
        preset = load_preset(name)
        solved = [figure.asked for figure in preset.figures if isinstance(figure.asked, Solved)]
        programs = [one.method for one in solved if one.method.engine.startswith("thesis-")]
        assert {method.model for method in programs} <= {"thesis"}
        assert bool(programs) == any("Kahn's algorithm" in words for words in preset.differs), name
