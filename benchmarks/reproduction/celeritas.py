"""Tables and figures of "Celeritas: fast optimizer for large dataflow graphs"."""

from __future__ import annotations

from benchmarks.reproduction.entry import (
    Claim,
    Entry,
    FromPreset,
    FromReport,
    FromTests,
    Illustrations,
    Never,
)
from benchmarks.reproduction.printed import Printed
from benchmarks.reproduction.rules import LESS, AtMost, Cut, Passes, Placed, Within

PAPER = "Celeritas"
_BAECHI = ("m-TOPO, s", "m-ETF, s", "m-SCT, s")
_RIVALS = ("Metis, s", *_BAECHI, "HRL, s")
_EVALUATION = ("docs/benchmarks/job.md", "5. Standard Evaluation: estimated and then measured",
               "make bench-job")  # fmt: skip
_CCR = "communication-to-computing ratio"
_TABLE_2, _TABLE_4, _FIGURE_6 = (
    Printed.in_preset(f"celeritas-{place}") for place in ("table-2", "table-4", "figure-6")
)
_LESS_CCR, _FUSED = _TABLE_2.cuts(_CCR), _TABLE_2.cuts("operators")
_CPU = "theirs are four models on V100s, ours AlexNet and VGG16 on a CPU"


def _minutes(method: str, model: str) -> float:
    return _FIGURE_6.of(f"{method}, min", model)


def _sooner(says: str, model: str, than: str) -> Claim:
    printed = f"{_minutes('Celeritas', model):g} < {_minutes(than, model):g} min"
    return Claim(says, printed, (_time_over(than, LESS),), models=(model,))


def _time_over(than: str, factor: float) -> AtMost:
    return AtMost("Celeritas, min", (f"{than}, min",), factor)


_ON_TRANSFORMER = [
    f"{_minutes(one, 'Transformer'):g}" for one in ("Celeritas", "DFS-TOPO", "m-TOPO")
]
_OVER_DFS = _minutes("Celeritas", "Inception-V3") / _minutes("DFS-TOPO", "Inception-V3")
ENTRIES = (
    Entry(
        PAPER, "figure 1", "HRL on Inception-V3 for eight hours",
        Never(
            "the drawing's steps of eight hours of training on the authors' four V100s are not in "
            "the text; HRL is a rival in table 3, with less time"
        ),
    ),
    Entry(
        PAPER, "figures 3 and 4", "what orders and merges do to a graph",
        FromTests(
            (
                "tests/optimizer/published/test_celeritas_fusion.py",
                "tests/optimizer/published/test_published_celeritas.py",
            ),
            "figure_3 or figure_4",
        ),
        (
            Claim(
                "m-TOPO's order cuts more edges between two devices than a depth-first one.",
                "more",
                (
                    Passes("figure_3_the_order_decides_how_many_edges_two_devices_cut"),
                    Passes("figure_3_breadth_first_cuts_four_edges_and_critical_paths_none"),
                    Passes("figure_3_as_the_engines_place_it"),
                ),
            ),
            Claim(
                "To merge two ends of another path makes a loop, and fusion never does it.",
                "never",
                (
                    Passes("figure_4_merging_two_ends_of_another_path_is_a_loop_and_never_done"),
                ),
            ),
        ),
    ),
    Entry(
        PAPER, "table 2", "operators and CCR before and after fusion",
        FromPreset("celeritas-table-2"),
        (
            Claim(
                f"Fusion cuts the communication-to-computing ratio to 1/{_LESS_CCR.least:.3g} or "
                "less.", f"1/{_LESS_CCR.least:.3g} to 1/{_LESS_CCR.most:.3g}",
                (Cut(_CCR, _LESS_CCR.least),),
            ),
            Claim(
                "It cuts the ratio to as little as a tenth.", "up to 1/10", (Cut(_CCR, 10.0),),
                "once",
            ),
            Claim(
                f"It leaves at most 1/{_FUSED.least:.3g} of the operators.",
                f"1/{_FUSED.least:.3g} to 1/{_FUSED.most:.3g}", (Cut("operators", _FUSED.least),),
            ),
            Claim(
                "It leaves as few as 1/165 of the operators.", "up to 1/165",
                (Cut("operators", 165.0),), "once",
            ),
        ),
    ),
    Entry(
        PAPER, "table 3", "step on four GPUs", FromPreset("celeritas-table-3"),
        (
            Claim(
                "Celeritas has a placement of every model.", "all 4", (Placed("Celeritas, s"),)
            ),
            Claim(
                "Its step is shorter than those of Metis, Baechi's three and HRL (by 7.8 % or more "
                "in the paper's table).", "all 4", (AtMost("Celeritas, s", _RIVALS, LESS),),
            ),
            Claim(
                "It is up to 34.2 % shorter than that of the best of these.", "up to 34.2 %",
                (AtMost("Celeritas, s", _RIVALS, 1 - 0.342),), "once",
            ),
            Claim(
                "Adjusting Placement is never worse than Order-Place (and 0.2 to 5.8 % better in "
                "the paper's table).", "never", (AtMost("Celeritas, s", ("Order-Place, s",)),),
            ),
            Claim(
                "Order-Place alone is better than Baechi (by 5.4 % or more in the paper's table).",
                "superior", (AtMost("Order-Place, s", _BAECHI, LESS),),
            ),
        ),
        unasked=(
            "that Metis, Baechi and HRL exceed a memory in 7 of 20 cases: the memory that a model "
            "takes is counted otherwise here",
        ),
    ),
    Entry(
        PAPER, "table 4", "time to make a placement", FromPreset("celeritas-table-4"),
        (
            Claim(
                "Celeritas takes up to 26.4 % less time than m-SCT.", "up to 26.4 %",
                (AtMost("Celeritas, s", ("m-SCT, s",), 1 - 0.264),), "once",
            ),
            _TABLE_4.takes_at_most("It takes", "Celeritas, s"),
            Claim(
                "Order-Place takes less.", "less",
                (AtMost("Order-Place, s", ("Celeritas, s",), LESS),),
            ),
        ),
    ),
    Entry(
        PAPER, "table 5", "estimated against measured operators", FromReport(*_EVALUATION),
        (
            Claim(
                "Estimates of memory are off by 6 % or less on average.", "1.5 to 6.0 %",
                (Within(("memory off by",), at_most=0.0602, unit="%"),),
            ),
            Claim(
                "Estimates of time are off by 14.2 % or less on average.", "8.0 to 14.2 %",
                (Within(("time off by",), at_most=0.1416, unit="%"),),
            ),
        ),
        (_CPU, "the preset `celeritas-table-5` says that a comparison runs no step to measure"),
    ),
    Entry(
        PAPER, "figure 5", "the distribution of these deviations",
        FromPreset("celeritas-figure-5"),
        (
            *(
                Claim(
                    f"For more than {part:.0%} of the operators of {', '.join(models)} memory is "
                    "estimated exactly.", f"> {part:.0%}",
                    (Within(("memory estimated exactly",), at_least=part, unit="%"),),
                    models=models,
                )
                for part, models in (
                    (0.9, ("Inception-V3", "Tensor Holography")),
                    (0.7, ("NMT", "Transformer")),
                )
            ),
            Claim(
                "For 90 % of the operators memory is off by at most 20 %.", "90 %",
                (Within(("memory estimated within 20 %",), at_least=0.9, unit="%"),),
            ),
            Claim(
                "For more than 60 % of the operators time is estimated exactly, except for NMT.",
                "> 60 %", (Within(("time estimated exactly",), at_least=0.6, unit="%"),),
                models=("Inception-V3", "Transformer", "Tensor Holography"),
            ),
            Claim(
                "For 80 % of the operators time is off by at most 30 %.", "80 %",
                (Within(("time estimated within 30 %",), at_least=0.8, unit="%"),),
            ),
        ),
    ),
    Entry(
        PAPER, "figure 6", "time of Standard Evaluation by placer",
        FromPreset("celeritas-figure-6"),
        (
            Claim(
                f"On Inception-V3 Celeritas takes at most 6 s, or {_OVER_DFS - 1:.1%}, longer than "
                "DFS-TOPO.", f"{_OVER_DFS:.3g}x",
                (_time_over("DFS-TOPO", _OVER_DFS),),
                models=("Inception-V3",),
            ),
            _sooner("There it takes less time than m-TOPO.", "Inception-V3", "m-TOPO"),
            _sooner("On NMT it takes less time than DFS-TOPO.", "NMT", "DFS-TOPO"),
            Claim(
                "On Transformer it takes less than a third of DFS-TOPO's time, and less than "
                "m-TOPO.",
                f"{_ON_TRANSFORMER[0]} < {_ON_TRANSFORMER[1]} / 3, {_ON_TRANSFORMER[2]} min",
                (_time_over("DFS-TOPO", 1 / 3), _time_over("m-TOPO", LESS)),
                models=("Transformer",),
            ),
            Claim(
                "On Tensor Holography it takes 65.1 % less time than m-TOPO.", "65.1 %",
                (_time_over("m-TOPO", 1 - 0.651),),
                models=("Tensor Holography",),
            ),
        ),
        unasked=(
            "that on Tensor Holography it takes 1 s longer than DFS-TOPO, whose own time is not in "
            "the text",
        ),
    ),
)  # fmt: skip
ILLUSTRATIONS: Illustrations = (
    (PAPER, "table 1", "methods by their properties; tables 3 and 4 have the figures"),
    (PAPER, "figure 2", "an overview"),
)
