"""Tests that models, clusters and figures of every preset hold together, and runs a small one."""

from __future__ import annotations

import csv
import importlib
from dataclasses import replace

import pytest

from placewire.optimizer.cli import main
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.operator_graph import OperatorRow, build_graph
from placewire.optimizer.profile.devices import DEVICES
from placewire.optimizer.published.comparison import captures, presets, running
from placewire.optimizer.published.comparison.beside_text import beside_csv, beside_lines
from placewire.optimizer.published.comparison.captures import (
    DECIDING,
    NotCapturedError,
    captured_graph,
)
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.published.comparison.estimation import part_within
from placewire.optimizer.published.comparison.presets import PRESETS, load_preset
from placewire.optimizer.published.comparison.presets.preset import (
    STARTS,
    Captured,
    Delays,
    Estimated,
    Figure,
    FusedAt,
    Preset,
    Reduced,
    Saved,
    Seeds,
    Solved,
    at_papers_times,
    equal_servers,
    shortened,
    solves_of,
)
from placewire.optimizer.published.comparison.reasons import Reasons
from placewire.optimizer.published.comparison.reproducing import reproduce
from placewire.optimizer.published.comparison.rows import Row
from tests.paths import ROOT


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
        if isinstance(figure.asked, Reduced):
            assert figure.asked.on in preset.clusters
        assert {one.on for one in solves_of(figure.asked)} <= set(preset.clusters)
        if isinstance(figure.asked, Estimated):
            batch = preset.models[figure.model].batch
            assert all(batch % divisor == 0 for divisor in figure.asked.divisors)


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


def test_seeds_are_a_mean_and_a_standard_deviation(tmp_path, monkeypatch):
    """Steps of 10, 20 and 30 ms against one device's 40: saved are 75, 50 and 25 %. The last one
    was stopped by the clock, so that its step could be anything shorter."""
    step = {("single", 0): 0.04, ("random", 0): 0.01, ("random", 1): 0.02, ("random", 2): 0.03}

    def solved(case, placements):
        method = case.method
        took = 9.0 if method.seed == 2 else 1.0
        seconds = step[method.engine, method.seed]
        return Row(
            key=case.key, graph="MLP", operators=9, cluster="two", engine=method.engine,
            reduction=method.reduction, model=method.model, seed=method.seed, gap=0.0,
            solver="auto", limit_seconds=10.0, outcome="placed", fits=True, search_seconds=took,
            step_seconds=seconds, contended_seconds=seconds,
        )  # fmt: skip

    monkeypatch.setattr(running, "solve_case", solved)
    servers = equal_servers(2, "rtx4080s", 16, nics=2, gigabits=10.0)
    drawn = Seeds(Solved("two", Method("random", time_limit_seconds=10.0), "step"), (0, 1, 2))
    one = Solved("two", Method("single", time_limit_seconds=10.0), "step")
    figures = [
        Figure("MLP", "drawn", "-", drawn),
        Figure("MLP", "saved", "-", Saved(one, drawn)),
        Figure("MLP", "evaluation", "-", replace(one, figure="evaluation")),
    ]
    models = {"MLP": Captured("placewire.examples.models.mlp:training_step", 8)}
    preset = Preset("A paper", models, ("rtx4080s",), {"two": servers}, figures, ())
    found, rows = reproduce(preset, tmp_path, lambda line: None)
    assert len(rows) == 4
    assert [one.ours for one in found] == ["20 ms ± 10 ms", "50.0% ± 25.0%", "0.0533 min"]
    assert [one.ended for one in found] == ["clock", "clock", "itself"]
    assert (found[0].known[0].low, found[0].known[0].high) == pytest.approx((0.01, 0.02))
    # 1 s of search and 5 + 50 steps of 40 ms, as section 6.3 of Celeritas has them.
    assert found[2].known[0].low == pytest.approx(3.2)


def test_estimates_from_small_batches_are_held_against_the_batch():
    """Of three operators: a leaves 10 bytes more with each example, and takes as long at any batch;
    b leaves 8, 16 and then 100 bytes where the line says 32, and takes 1, 2 and then 4 s as the
    line says; c leaves nothing and takes 1, 2 and then 5 s, where the line says 4."""

    def at(batch, held, took):
        rows = [
            OperatorRow("a", "op", {"v100": 3.0}, "", 0, 10 * batch),
            OperatorRow("b", "op", {"v100": batch * 1.0}, "", 0, held),
            OperatorRow("c", "op", {"v100": took}),
        ]
        return build_graph(rows, [])

    small, wanted = {1: at(1, 8, 1.0), 2: at(2, 16, 2.0)}, at(4, 100, 5.0)
    for asked, part in (
        (Estimated((4, 2), "memory", 0.0), 1 / 2),
        (Estimated((4, 2), "memory", 0.7), 1.0),
        (Estimated((4, 2), "time", 0.0), 2 / 3),
        (Estimated((4, 2), "time", 0.3), 1.0),
    ):
        assert part_within(small, wanted, 4, asked) == pytest.approx(part), asked


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
    asked = [one for figure in quick.figures for one in solves_of(figure.asked)]
    assert {one.method.time_limit_seconds for one in asked} == {5.0}
    # One device, and four variants of HSDAG, of five seeds each.
    assert len({one.method for one in asked}) == 1 + 4 * 5
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


@pytest.mark.parametrize("change", ["examples/blocks.py", *(f"{one}/x.py" for one in DECIDING)])
def test_a_graph_is_captured_again_once_any_source_of_it_changed(tmp_path, monkeypatch, change):
    """The module of a model imports others of its folder, as AlphaFold2's does its layers."""
    for folder in ("examples", *DECIDING):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("peak = 1\n")
    (tmp_path / "examples" / "blocks.py").write_text("layers = 1\n")
    (tmp_path / "examples" / "own_model.py").write_text("def training_step(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path / "examples"))
    monkeypatch.setattr(captures, "_OPTIMIZER", tmp_path)
    made = build_graph([OperatorRow("a", "op", {"cpu": 1.0}, flops=8)], [])
    monkeypatch.setattr(captures, "_capture", lambda model, file: save_graph(made, file))
    said: list[str] = []

    def kept():
        model = Captured("own_model:training_step", 4)
        return captured_graph("m", model, ("v100",), tmp_path / "graphs", said.append).file

    first = kept()
    assert kept() == first and len(said) == 1
    with (tmp_path / change).open("a") as source:
        source.write("peak = 2\n")
    assert kept() != first and len(said) == 2


@pytest.mark.parametrize("paper", ["thesis", "icc", "celeritas"])
def test_fusion_is_asked_of_graphs_as_fine_as_the_papers(paper):
    """Those of training steps; the claims are about how many operators a graph has."""
    presets_of = [load_preset(name) for name in PRESETS if name.startswith(f"{paper}-")]
    asked = [
        (preset, figure.asked)
        for preset in presets_of
        for figure in preset.figures
        if isinstance(figure.asked, Reduced | Delays | FusedAt)
    ]
    assert asked
    for preset, one in asked:
        assert one.decompose
        assert any("--decompose" in told for told in preset.differs)


def test_a_decomposed_step_has_more_operators_and_programs_place_it_as_it_runs(tmp_path):
    servers = equal_servers(2, "rtx4080s", 16, nics=1, gigabits=10.0)
    captured = Captured("placewire.examples.models.mlp:training_step", 8)
    reduced = Reduced("two", "thesis", "operators")
    single = Solved("two", Method("single", time_limit_seconds=5.0), "step")
    preset = Preset(
        "A table", {"MLP": captured}, ("rtx4080s",), {"two": servers},
        [
            Figure("MLP", "as it runs", "-", reduced),
            Figure("MLP", "decomposed", "-", replace(reduced, decompose=True)),
            Figure("MLP", "alpha", "-", Delays("alpha")),
            Figure("MLP", "alpha, decomposed", "-", Delays("alpha", decompose=True)),
            Figure("MLP", "fused", "-", FusedAt(0.0)),
            Figure("MLP", "fused, decomposed", "-", FusedAt(0.0, decompose=True)),
            Figure("MLP", "step", "-", single),
        ],
        (),
    )  # fmt: skip
    said: list[str] = []
    found, (row,) = reproduce(preset, tmp_path, said.append)
    of = {one.what: one.known for one in found}
    before, fine = of["as it runs"][0].low, of["decomposed"][0].low
    assert fine > 2 * before == 2 * row.operators
    assert of["alpha"] != of["alpha, decomposed"]
    assert of["fused"][1].low < of["fused, decomposed"][1].low
    assert len([line for line in said if line.startswith("capturing")]) == 2


@pytest.mark.parametrize("paper", ["hsdag", "moirai"])
def test_papers_of_inferences_have_no_training_steps(paper):
    names = [name for name, place in PRESETS.items() if place.startswith(f"{paper}:")]
    models = [model for name in names for model in load_preset(name).models.values()]
    assert models and all(model.inference for model in models)


def test_the_guide_says_how_long_the_papers_own_times_take():
    """Of all solves of Moirai's two presets, each once."""

    def hours(times):
        found = {}
        for name in ("moirai-table-v", "moirai-figure-10"):
            for figure in times(load_preset(name)).figures:
                for one in solves_of(figure.asked):
                    found[figure.model, one.on, one.method] = one.method.time_limit_seconds
        return round(sum(found.values()) / 3600)

    less, more = hours(lambda preset: preset), hours(at_papers_times)
    guide = " ".join((ROOT / "docs" / "how-to" / "compare-methods.md").read_text().split())
    assert f"may take {less} hours in all, and {more} hours with it" in guide


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


@pytest.mark.parametrize("name", ["icc-figure-5", "icc-figure-6", "thesis-figure-5.3"])
def test_methods_are_judged_under_the_model_that_they_place_under(name):
    asked = [one for figure in load_preset(name).figures for one in solves_of(figure.asked)]
    assert {one.method.model for one in asked} == {"thesis"}
    assert {one.figure for one in asked} <= {"own", "search"}


def programs_of(preset: Preset) -> list[Solved]:
    asked = [one for figure in preset.figures for one in solves_of(figure.asked)]
    return [one for one in asked if one.method.engine.startswith(("thesis-p", "icc-p"))]


def test_presets_with_programs_say_with_what_these_begin():
    for name in (one for one in PRESETS if one.startswith(("thesis-", "icc-"))):
        preset = load_preset(name)
        assert bool(programs_of(preset)) == (STARTS in preset.differs), name


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("thesis-")])
def test_programs_of_the_thesis_run_operators_in_its_own_sort(name):
    """But in figure 5.3: under model thesis, under which they stand beside MCMC and Metis there,
    every placement runs in a sort by Kahn's algorithm, and the preset says so."""
    preset = load_preset(name)
    methods = {one.method for one in programs_of(preset)}
    sorts = {"Kahn's" if one.model == "thesis" else one.sort for one in methods}
    beside_others = name == "thesis-figure-5.3"
    assert sorts <= {"Kahn's" if beside_others else "auto"}
    words = (
        "in a sort by Kahn's algorithm" if beside_others else "of the sort by depth-first search"
    )
    assert bool(methods) == any(words in told for told in preset.differs)


WITHOUT_ALLOCATION = (
    "thesis-table-5.2", "thesis-figure-5.3", "thesis-figure-5.4", "icc-table-1", "icc-figure-5",
    "icc-figure-6",
)  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_ALLOCATION)
def test_without_allocation_every_pair_of_servers_has_all_of_one_nic(name):
    """A rival whose rates followed its traffic, over several NICs, would have what is compared."""
    preset = load_preset(name)
    for figure in preset.figures:
        for one in solves_of(figure.asked):
            assert one.method.sharing == "unshaped", figure.what
            assert {len(server.nics) for server in preset.clusters[one.on].servers} == {1}


def test_a_transfer_of_quickp_takes_no_setup():
    for name in (one for one in PRESETS if one.startswith("icc-")):
        clusters = load_preset(name).clusters.values()
        assert {cluster.setup_latency_seconds for cluster in clusters} == {0.0}


def test_figure_5_2_sets_the_program_that_decides_bandwidth_against_its_tree():
    preset = load_preset("thesis-figure-5.2")
    assert len(preset.figures) == 4 * 5
    for figure in preset.figures:
        asked = figure.asked
        assert isinstance(asked, Saved) and isinstance(asked.fast, Solved)
        assert (asked.slow.method.engine, asked.fast.method.engine) == (
            "thesis-p3-fixed", "thesis-p3",
        )  # fmt: skip
        assert asked.slow.figure == asked.fast.figure == "own"
        # What is saved is more than what either may have left.
        assert asked.slow.method.gap == asked.fast.method.gap == 0.01
        tree, allocated = preset.clusters[asked.slow.on], preset.clusters[asked.fast.on]
        assert [len(server.nics) for server in tree.servers] == [1] * 4
        assert [len(server.nics) for server in allocated.servers] == [3] * 4
        assert {nic.rate_bits_per_second for server in tree.servers for nic in server.nics} == {
            nic.rate_bits_per_second for server in allocated.servers for nic in server.nics
        }
