"""Tables and figures of "Moirai: towards optimal placement for distributed inference on
heterogeneous devices"."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.reproduction.entry import (
    Claim,
    Entry,
    FromOwn,
    FromPreset,
    FromTests,
    Illustrations,
    Never,
)
from benchmarks.reproduction.printed import Printed
from benchmarks.reproduction.rules import LESS, AtMost, Cut, Passes, Within
from placewire.optimizer.published.comparison.presets import load_preset
from placewire.optimizer.published.comparison.presets.moirai import AT_MOST
from placewire.optimizer.published.comparison.presets.preset import Figure, Preset, Reduced

PAPER = "Moirai"
_GRAPHS = tuple(dict.fromkeys(graph for graph, _ in AT_MOST))
_ON = tuple(dict.fromkeys(on for _, on in AT_MOST))
# Operators before and after coarsening.
_TABLE_4 = {
    "Swin 1.8B": "6,496 -> 5,204",
    "Swin 6.6B": "14,352 -> 11,512",
    "Swin 13B": "22,120 -> 17,947",
    "GPT-3 330M": "4,872 -> 3,682",
    "GPT-3 1.3B": "9,480 -> 7,308",
    "GPT-3 2.7B": "12,640 -> 9,825",
    "GPT-3 13B": "19,640 -> 15,283",
    "AlphaFold2 87M": "5,136 -> 3,618",
    "AlphaFold2 930M": "12,992 -> 9,252",
    "AlphaFold2 2.4B": "37,920 -> 26,824",
    "AlphaFold2 3.2B": "50,560 -> 35,096",
}


def _table_iv() -> Preset:
    of = load_preset("moirai-table-v")
    on = next(iter(of.clusters))
    figures = [
        Figure(model, "operators", _TABLE_4[model], Reduced(on, "gcof-inductor", "operators"))
        for model in of.models
    ]
    return replace(of, title="Moirai, table IV: operators", figures=figures)


def _step(method: str, graph: str, on: str) -> str:
    return f"{method}, {graph}, {on}, ms"


def _beats(rival: str, graph: str, on: str, factor: float) -> AtMost:
    return AtMost(_step("Moirai", graph, on), (_step(rival, graph, on),), 1 / factor)


_FUSED = Printed(_table_iv().figures).cuts("operators")
_MINUTES = Printed.in_preset("moirai-table-v").most("Moirai, original, s")

ENTRIES = (
    Entry(
        PAPER, "figure 3", "a channel over several hops",
        FromTests(("tests/optimizer/published/test_moirai.py",), "figure_3"),
        (
            Claim(
                "The slowest hop decides the bandwidth of a channel.", "20 s",
                (Passes("figure_3_the_slowest_hop_rules"),),
            ),
        ),
    ),
    Entry(
        PAPER, "figure 4", "times of operators on four devices",
        Never("it needs the authors' devices; our times of such devices are modelled"),
    ),
    Entry(
        PAPER, "figures 5 to 8", "examples of coarsening, and links turned into nodes",
        FromTests(
            ("tests/optimizer/published/test_gcof.py", "tests/optimizer/published/test_moirai.py"),
            "figure_5 or figure_6 or figure_7 or figure_8",
        ),
        (
            Claim(
                "A backend makes one kernel of an elementwise expression.", "1 kernel",
                (Passes("figure_5_an_elementwise_expression_is_one_kernel_of_inductor"),),
            ),
            Claim(
                "Operators fuse over direct and multi-input connections, and not over multi-output "
                "ones.", "drawn",
                (Passes("figure_6_direct_and_multi_input_connections_fuse_and_multi_outputs_do_not"),),
            ),
            Claim(
                "GCOF groups the operators of the example by the rules of table I.", "drawn",
                (
                    Passes("figure_7_as_the_text_walks_through_it"),
                    Passes("figure_7_does_not_depend_on_which_branch_comes_first"),
                ),
            ),
            Claim(
                "Every link becomes a node between the two that it joined.", "drawn",
                (Passes("figure_8_links_become_nodes"),),
            ),
        ),
    ),
    Entry(
        PAPER, "table IV", "operators of the models before and after coarsening",
        FromOwn(_table_iv),
        (
            Claim(
                f"Coarsening leaves at most {1 / _FUSED.least:.1%} of the operators.",
                f"{1 / _FUSED.most:.1%} to {1 / _FUSED.least:.1%}",
                (Cut("operators", _FUSED.least),),
            ),
        ),
    ),
    Entry(
        PAPER, "figure 9", "bandwidth between the devices during 100 s",
        Never("it needs the authors' InfiniBand and NVLink; table III's averages are our links"),
    ),
    Entry(
        PAPER, "table V", "time to make a placement", FromPreset("moirai-table-v"),
        (
            Claim(
                "On coarsened graphs Moirai takes 71.87 % of the time on average.", "0.7187x",
                (AtMost("Moirai, coarsened, s", ("Moirai, original, s",), 0.7187),),
                "on average",
            ),
            Claim(
                "m-SCT takes the least time.", "least",
                tuple(
                    AtMost(f"m-SCT, {graph}, s", (f"GETF, {graph}, s", f"Moirai, {graph}, s"), LESS)
                    for graph in _GRAPHS
                ),
            ),
            Claim(
                f"On graphs as they are Moirai takes at most {_MINUTES:g} min.",
                f"<= {_MINUTES:g} min",
                (Within(("Moirai, original, s",), at_most=60 * _MINUTES, unit="s"),),
            ),
        ),
    ),
    Entry(
        PAPER, "figure 10", "step of four methods", FromPreset("moirai-figure-10"),
        (
            *(
                Claim(
                    f"Moirai's step is shorter than {rival}'s.", "consistently",
                    tuple(_beats(rival, graph, on, 1 / LESS) for graph, on in AT_MOST),
                )
                for rival in ("Placeto", "m-SCT", "GETF")
            ),
            *(
                Claim(
                    f"On {graph} graphs, {on}, {rival}'s is up to {factor:g} times as long.",
                    f"up to {factor:g}x",
                    (_beats(rival, graph, on, factor),), "once",
                )
                for (graph, on), most in AT_MOST.items()
                for rival, factor in most.items()
            ),
            *(
                Claim(
                    f"Coarsening shortens the step by up to {saved:.1%} {on}.",
                    f"up to {saved:.1%}",
                    (
                        AtMost(_step("Moirai", "coarsened", on),
                               (_step("Moirai", "original", on),), 1 - saved),
                    ),
                    "once",
                )
                for on, saved in zip(_ON, (0.057, 0.038), strict=True)
            ),
        ),
        unasked=(
            "that larger models, and faster links, gain more: the first sets models against each "
            "other, the second two machines of unlike devices",
        ),
    ),
)  # fmt: skip
ILLUSTRATIONS: Illustrations = (
    (PAPER, "figures 1 and 2", "a taxonomy and an overview"),
    (PAPER, "table I", "rules of GCOF, which the reduction `gcof-eigen` has"),
    (PAPER, "table II", "the notation"),
    (PAPER, "table III", "the testbed, which the preset's clusters have"),
)
