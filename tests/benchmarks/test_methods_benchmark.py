"""What `make bench-methods` concludes from rows: marks, reasons, lateness."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine import methods
from benchmarks.engine.measured import Result
from benchmarks.methods import claims, grand, programs, promises
from benchmarks.methods.field import MEMORY, SERVERS, servers
from placewire.optimizer.published.comparison.cases import ComparedGraph
from placewire.optimizer.published.comparison.presets import PRESETS, load_preset
from placewire.optimizer.published.formulations import gurobi
from tests.optimizer.published.comparison_rows import row


def auto(**changed):
    return row(key="a", engine="auto", search_seconds=20.0, limit_seconds=20.0, **changed)


def tables(module, rows, monkeypatch):
    monkeypatch.setattr(module, "rows_of", lambda cases: rows)
    monkeypatch.setattr(module, "grand_cases", list)
    return list(module.tables(None))


def test_auto_is_the_best_or_marked_with_the_method_that_is(monkeypatch):
    rows = [
        auto(contended_seconds=2.01, found=((0.2, 2.01),)),
        row(contended_seconds=2.0, search_seconds=0.5),
        auto(graph="h", operators=2000, contended_seconds=2.2, found=((3.0, 2.2),)),
        row(graph="h", operators=2000, contended_seconds=2.0, search_seconds=0.5),
        auto(graph="i", operators=2000, contended_seconds=2.0, found=((3.0, 2.0),)),
        row(graph="i", operators=2000, contended_seconds=2.0, search_seconds=0.5),
        auto(graph="j", operators=2000, outcome="infeasible", contended_seconds=None, fits=None,
             why="no placement was found. The graph holds 3 MiB."),
    ]  # fmt: skip
    against, everything = tables(grand, rows, monkeypatch)
    assert [one[-1] for one in against.rows] == ["", "worse", "later", "no fit"]
    assert against.rows[0][4:6] == ["heft 0.5", "0.2"]
    said = " ".join(against.notes)
    assert (
        "Of 3 steps of other methods, auto is as short, within 1%, as 2, or shorter; on 2 of 3 "
        in said
    )
    assert "4 graphs were tried. Of the 2 with more than 1000 operators" in said
    assert "j: no method places it. auto: no placement was found." in said
    assert "h: heft found 2000 ms in 0.5 s" in said
    assert "i: before auto came heft (0.5 s)" in said
    assert len(everything.rows) == 11


def test_reasons_are_told_once_however_their_figures_differ(monkeypatch):
    rows = [auto()] + [
        row(key=f"{k}", engine="peft", outcome="refused", contended_seconds=None, fits=None,
            why=f"it has {k}00 rows", graph=f"g{k}")
        for k in (1, 2)
    ] + [auto(graph=f"g{k}") for k in (1, 2)]  # fmt: skip
    _, everything = tables(grand, rows, monkeypatch)
    assert [one[1] for one in everything.rows if one[0] == "  peft"] == ["refused (1)"] * 2
    assert everything.notes[1:] == ("(1) g1, peft: it has 100 rows",)


def test_what_is_late_or_broken_is_named(monkeypatch):
    late = row(engine="metis", search_seconds=11.1)
    broken = row(
        engine="dsc", outcome="broken", contended_seconds=None, why="a rule", checked=False
    )
    (table,) = tables(promises, [row(), late, broken], monkeypatch)
    assert {one[0]: (one[1], one[2], one[-1]) for one in table.rows} == {
        "heft": ("1", "1", "0"), "metis": ("1", "1", "1"), "dsc": ("0", "0", "0"),
    }  # fmt: skip
    assert "g, metis: placed, 11.1 s. " in table.notes
    assert "g, dsc: broken, 0.5 s. a rule" in table.notes


def test_a_claim_says_on_how_many_graphs_it_holds():
    assert claims._verdict("So", []) == "So: nothing here can tell."
    assert claims._verdict("So", [True, True]) == "So: holds on all 2 that can tell."
    assert claims._verdict("So", [True, False]) == "So: holds on 1 of 2 that can tell."


def test_a_program_that_its_time_stopped_does_not_say_how_long_it_takes(monkeypatch):
    def moirai(seconds, step):
        return row(engine="moirai", limit_seconds=60.0, search_seconds=seconds, step_seconds=step)

    solved = {
        "mlp": [moirai(9.0, 1.0), moirai(4.0, 1.0), moirai(12.0, 1.0)],
        "two_towers": [moirai(52.0, 1.0), moirai(30.0, 1.0), moirai(52.5, 0.9)],
        "alexnet": [moirai(52.0, 1.0), moirai(52.5, 0.9), moirai(51.0, 1.1)],
        "vgg16": [moirai(52.0, None), moirai(51.0, 1.0), moirai(51.0, 1.0)],
    }
    graphs = {name: ComparedGraph(name, Path(name), 1, name, name) for name in solved}
    monkeypatch.setattr(claims, "captured_graph", graphs.get)
    monkeypatch.setattr(claims, "rows_of", lambda cases: solved[cases[0].graph.name])
    table = claims._coarsening()
    assert table.notes[1].endswith("sooner with GCOF: holds on 2 of 3 that can tell.")
    assert table.notes[2].endswith("in that time: holds on 2 of 3 that can tell.")


def test_no_row_counts_for_auto_that_a_rival_lost_to_the_clock(monkeypatch):
    """Of h, where auto is the best, no rival ended by itself. One that is shorter when its time is
    over counts against auto, as one that proves that it has no placement counts for neither."""
    late = {"search_seconds": 9.0, "limit_seconds": 10.0}
    unplaced = {"contended_seconds": None, "fits": None}
    rows = [
        auto(contended_seconds=2.0, found=((0.2, 2.0),)),
        row(contended_seconds=2.5), row(engine="mcmc", contended_seconds=3.0, **late),
        row(engine="icc-p1", outcome="infeasible", **late, **unplaced),
        row(engine="icc-p2", outcome="out of time", **late, **unplaced),
        auto(graph="h", contended_seconds=2.0, found=((0.2, 2.0),)),
        row(graph="h", engine="mcmc", contended_seconds=3.0, **late),
        auto(graph="i", operators=2000, contended_seconds=2.2, found=((0.2, 2.2),)),
        row(graph="i", operators=2000, engine="mcmc", contended_seconds=2.0, **late),
        auto(graph="j", operators=2000, contended_seconds=2.0, found=((3.0, 2.0),)),
        row(graph="j", operators=2000, engine="mcmc", contended_seconds=2.0, **late),
    ]  # fmt: skip
    against, _ = tables(grand, rows, monkeypatch)
    assert against.notes[0].startswith(
        "Of 2 steps of other methods, auto is as short, within 1%, as 1, or shorter; on 1 of 2 "
        "graphs it is so of all that count. Not counted: 4 that the clock ended before they were "
        "shorter, and 1 without a placement."
    )
    assert [one[4] for one in against.rows] == ["none", "none", "mcmc 9.0", "none"]


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        ((1.9, 1.0), (3.4, 1.0), ("holds on all 1", "holds on all 1", "")),
        ((1.9, 1.1), (3.4, 1.0), ("holds on 0 of 1", "holds on all 1", "")),
        # The clock ended theirs: it takes longer, and its step may become shorter, but not longer.
        ((1.9, 1.0), (52.0, 1.0), ("nothing here can tell", "holds on all 1", "")),
        ((1.9, 1.1), (52.0, 1.0), ("holds on 0 of 1", "holds on all 1", "")),
        ((52.0, 1.0), (20.0, 1.0), ("holds on all 1", "holds on 0 of 1", "")),
        ((52.0, 1.1), (20.0, 1.0), ("nothing here can tell", "holds on 0 of 1", "")),
        ((51.9, 1.0), (52.6, 1.0), ("nothing here can tell",) * 2 + ("both on alexnet.",)),
        ((51.9, 1.0), (52.6, None), ("nothing here can tell",) * 2 + ("both on alexnet.",)),
    ],
)
def test_a_scheme_is_no_sooner_than_one_that_the_clock_ended_with_it(
    monkeypatch, ours, theirs, told
):
    """FNet: 51.9 s against 52.6 s, of which both had 60."""

    def scheme(seconds: float, step: float | None):
        found = () if step is None else ((seconds, step, 0.5),)
        outcome = "out of time" if step is None else "placed"
        return row(engine="thesis-p3-fixed", gap=0.1, limit_seconds=60.0, search_seconds=seconds,
                   own_found=found, outcome=outcome)  # fmt: skip

    solved = {"thesis": scheme(*ours), "colocrl": scheme(*theirs)}

    def rows_of(cases):
        found = solved if cases[0].graph.name == "alexnet" else {}
        return [found.get(case.method.reduction, row(outcome="refused")) for case in cases]

    monkeypatch.setattr(claims, "rows_of", rows_of)
    monkeypatch.setattr(
        claims, "captured_graph", lambda name: ComparedGraph(name, Path(name), 1, name, name)
    )
    *_, near, sooner = claims._schemes().notes
    assert told[0] in near and told[1] in sooner
    assert sooner.endswith(told[2])


def test_what_the_clock_ended_counts_for_no_column_of_auto(monkeypatch):
    def scored(engine: str, step: float | None, seconds: float = 1.0, refusal: str = ""):
        result = Result(refusal=refusal, startup_seconds=0.1, engine_seconds=seconds,
                        wall_seconds=seconds, peak_memory_bytes=1, file="")  # fmt: skip
        return methods.Scored(engine, result, step, step)

    against = list(methods._against([
        scored("auto", 1.0, 60.0), scored("single", 1.2), scored("heft", 0.9),
        scored("thesis-p1", 1.2, 119.0), scored("thesis-p2", 1.2, 34.0),
        scored("thesis-p3", 0.9, 119.0), scored("thesis-p1", None, 120.0, "NoIncumbentError: no"),
        scored("thesis-p2", None, 120.0, "InfeasibleError: no"),
    ]))  # fmt: skip
    assert against == [["won", "lost", "late", "won", "lost", "late", "unplaced"]] * 2


def test_programs_and_auto_have_room_for_the_static_sum_of_every_model():
    """BERT takes 21.8 GiB by (3.2), and GPT-2 28.4."""
    thesis = [load_preset(name) for name in PRESETS if name.startswith("thesis-")]
    clusters = [servers(SERVERS).cluster, *(on for one in thesis for on in one.clusters.values())]
    assert all((on.memory_bytes > 28.4 * 2**30).all() for on in clusters)
    assert methods.MEMORY_BYTES > 28.4 * 2**30


def test_mcmc_is_held_against_when_auto_was_as_short(monkeypatch):
    sooner = [auto(contended_seconds=2.0, found=((0.4, 2.1), (3.0, 2.0)))]
    mcmc = {"engine": "mcmc", "search_seconds": 9.0, "limit_seconds": 20.0}
    sooner.append(row(**mcmc, contended_seconds=2.08))
    later = [auto(graph="h", contended_seconds=2.0, found=((12.0, 2.0),))]
    later.append(row(graph="h", **mcmc, contended_seconds=2.0))
    unplaced = [auto(graph="i"), row(graph="i", engine="mcmc", fits=None, outcome="refused")]
    cut = [auto(graph="j", contended_seconds=2.0, found=((0.4, 2.0),))]
    cut.append(row(graph="j", **mcmc | {"limit_seconds": 10.0}, contended_seconds=2.08))
    monkeypatch.setattr(claims, "rows_of", lambda cases: [*sooner, *later, *unplaced, *cut])
    monkeypatch.setattr(claims, "grand_cases", list)
    table = claims._random_walks()
    assert [one[2:] for one in table.rows] == [
        ["1.040", "9.0", "0.4"], ["1.000", "9.0", "12.0"], ["1.040", "9.0", "0.4"],
    ]  # fmt: skip
    assert table.notes[-1].endswith("holds on 1 of 2 that can tell. The clock ended MCMC on j.")


def test_programs_stand_beside_each_other_by_their_own_and_the_contended_step(monkeypatch):
    """Each over every solver, with auto; why one has no placement is told once."""
    reduced = {"reduction": "thesis", "reduced": "thesis: 9 -> 4 operators, 1 groups"}

    def rows_of(cases):
        asked = [(case.method.engine, case.method.solver) for case in cases]
        assert asked[:3] == [
            ("thesis-p1", "highs"),
            ("thesis-p1", "cp-sat"),
            ("thesis-p1", "gurobi"),
        ]
        assert asked[-1] == ("auto", "auto") and len(asked) == 6 * 3 + 1
        assert len({case.method.time_limit_seconds for case in cases}) == 1
        return [
            row(engine="thesis-p1", solver="cp-sat", own_found=((0.5, 1.5, 0.0), (2.0, 1.2, 1.14)),
                **reduced),
            row(engine="thesis-p2", solver="gurobi", outcome="refused", why="a licence for 200",
                contended_seconds=None, fits=None, reduction="thesis"),
            row(engine="auto", contended_seconds=2.5),
        ]  # fmt: skip

    monkeypatch.setattr(gurobi, "has_full_licence", lambda: True)
    monkeypatch.setattr(programs, "rows_of", rows_of)
    monkeypatch.setattr(
        programs, "captured_graph", lambda name: ComparedGraph(name, Path(name), 3, name, name)
    )
    monkeypatch.setattr(programs, "GRAPHS", ("g",))
    (table,) = programs.tables(None)
    assert table.rows == [
        ["g (3)", "thesis: 9 -> 4 operators, 1 groups", "", "", "", ""],
        ["  thesis-p1 cp-sat", "1200", "5.0%", "2.0", "2000", "0.5"],
        ["  thesis-p2 gurobi", "-", "-", "-", "refused (1)", "0.5"],
        ["  auto", "-", "-", "-", "2500", "0.5"],
    ]
    assert table.notes[1].startswith(
        "`thesis-p2` and `thesis-p3` decide the bandwidth of all 3 NICs"
    )
    assert table.notes[2] == MEMORY
    assert table.notes[3].endswith(
        "steps are up to 1.7 times as long as the program says, and 0.8 to 0.8 times as long as "
        "auto's."
    )
    assert table.notes[4:] == ("(1) g, thesis-p2 gurobi: a licence for 200",)
    monkeypatch.setattr(gurobi, "has_full_licence", lambda: False)
    assert "gurobi" not in {case.method.solver for case in programs.cases_of("g")}


def test_what_a_program_says_by_its_own_model_is_in_the_great_table(monkeypatch):
    rows = [auto(), row(engine="thesis-p3", own_found=((0.4, 1.8, 1.7),))]
    _, everything = tables(grand, rows, monkeypatch)
    cells = {one[0].strip(): one[-2:] for one in everything.rows}
    assert everything.columns[-2:] == ("own ms", "to 10 % s")
    assert cells["thesis-p3"] == ["1800", "0.4"]
    assert cells["auto"] == ["-", "-"]
