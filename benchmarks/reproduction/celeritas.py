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
from benchmarks.reproduction.rules import AtMost, Cut, Passes, Placed, Within

PAPER = "Celeritas"
_BAECHI = ("m-TOPO, s", "m-ETF, s", "m-SCT, s")
_RIVALS = ("Metis, s", *_BAECHI)
_EVALUATION = ("docs/benchmarks/job.md", "5. Standard Evaluation: estimated and then measured",
               "make bench-job")  # fmt: skip
_CPU = "theirs are four models on V100s, ours AlexNet and VGG16 on a CPU"

ENTRIES = (
    Entry(
        PAPER, "figure 1", "HRL on Inception-V3 for eight hours",
        Never("HRL, a learned method, trains for hours on the authors' four V100s"),
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
                "Fusion cuts the communication-to-computing ratio.", "1/2.9 to 1/10.1",
                (Cut("communication-to-computing ratio", 1.01),),
            ),
            Claim(
                "It cuts the ratio to as little as a tenth.", "up to 1/10",
                (Cut("communication-to-computing ratio", 10.0),), "once",
            ),
            Claim(
                "It leaves at most 1/103 of the operators.", "1/103 to 1/165",
                (Cut("operators", 102.9),),
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
                "Its step is shorter than Metis' and those of Baechi's three.", "> 7.8 %",
                (AtMost("Celeritas, s", _RIVALS),),
            ),
            Claim(
                "It is up to 34.2 % shorter than that of the best of these.", "up to 34.2 %",
                (AtMost("Celeritas, s", _RIVALS, 1 - 0.342),), "once",
            ),
            Claim(
                "Adjusting Placement is never worse than Order-Place.", "0.2 to 5.8 %",
                (AtMost("Celeritas, s", ("Order-Place, s",)),),
            ),
            Claim(
                "Order-Place alone is better than Baechi.", "> 5.5 %",
                (AtMost("Order-Place, s", _BAECHI),),
            ),
        ),
    ),
    Entry(
        PAPER, "table 4", "time to make a placement", FromPreset("celeritas-table-4"),
        (
            Claim(
                "Celeritas takes up to 26.4 % less time than m-SCT.", "up to 26.4 %",
                (AtMost("Celeritas, s", ("m-SCT, s",), 1 - 0.264),), "once",
            ),
            Claim(
                "It takes at most 95.3 s.", "<= 95.3 s",
                (Within(("Celeritas, s",), at_most=95.304, unit="s"),),
            ),
            Claim(
                "Order-Place takes less.", "less",
                (AtMost("Order-Place, s", ("Celeritas, s",)),),
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
        PAPER, "figure 5", "the distribution of these deviations", FromReport(*_EVALUATION),
        (
            Claim(
                "For 90 % of the operators memory is off by at most 20 % (here: 30 %).", "90 %",
                (Within(("within 30 %",), at_least=0.9, unit="%"),),
            ),
            Claim(
                "For 80 % of the operators time is off by at most 30 %.", "80 %",
                (Within(("within 30 % (2)",), at_least=0.8, unit="%"),),
            ),
        ),
        (_CPU,),
    ),
    Entry(
        PAPER, "figure 6", "time of Standard Evaluation by placer",
        Never(
            "its times are those of steps that no GPU of the authors' can hold, on four V100s "
            "under TensorFlow 1.12; `controller evaluate` has one placer, `sequential`"
        ),
    ),
)  # fmt: skip
ILLUSTRATIONS: Illustrations = (
    (PAPER, "table 1", "methods by their properties; tables 3 and 4 have the figures"),
    (PAPER, "figure 2", "an overview"),
)
