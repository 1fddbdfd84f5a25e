"""Tables and figures of the thesis, "Joint Optimization of Algebraic Transformation, Device
Placement, and Network Bandwidth Allocation for Distributed DNN Training"."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.reproduction.entry import (
    Claim,
    Entry,
    FromPreset,
    FromReport,
    FromTests,
    Illustrations,
)
from benchmarks.reproduction.printed import Printed
from benchmarks.reproduction.rules import LESS, AtMost, Cut, Passes, Within
from placewire.optimizer.published.comparison.ranking import TIE

PAPER = "Thesis"
_COMPARABLE = 1.05
_SOLVERS = (" over HiGHS", " over CP-SAT")
_TABLE_5_1 = Printed.in_preset("thesis-table-5.1")
_TABLE_5_2 = Printed.in_preset("thesis-table-5.2")
_FUSED = _TABLE_5_1.cuts("operators")


def _solver(what: str) -> tuple[str, ...]:
    return tuple(f"solver {what}{over}, s" for over in _SOLVERS)


# The paper's solver stands beside both of ours.
_WITHOUT, _WITH = _solver("without bandwidth"), _solver("with bandwidth")
_LONGER = _TABLE_5_1.times(_WITH[0], _WITHOUT[0])
_MCMC = "MCMC, 25,000 steps, s"


def _grown(what: str) -> float:
    return _TABLE_5_1.of(what, "BERT") / _TABLE_5_1.of(what, "AlexNet")


_WORKED = (
    Entry(
        PAPER, "figure 3.1", "two parallelizable operators on two GPUs",
        FromTests(("tests/optimizer/published/test_thesis_figures.py",), "figure_3_1"),
        (
            Claim(
                "Of all placements of the example the middle one, with the pair on two GPUs, is "
                "the shortest, and three engines find it.", "15 us",
                (
                    Passes("figure_3_1_the_parallel_pair_on_two_devices_is_the_optimum"),
                    Passes("figure_3_1_engines_find_it"),
                ),
            ),
        ),
    ),
    Entry(
        PAPER, "figure 3.2", "uneven bandwidth in a cluster of six servers and three switches",
        FromTests(
            (
                "tests/controller/compile/test_thesis_figure_3_2.py",
                "tests/optimizer/published/test_thesis_figures.py",
            ),
            "figure_3_2",
        ),
        (
            Claim(
                "(a) A pair of servers may have the links of all switches.", "3 x 20 Gbit/s",
                (Passes("figure_3_2_a_a_pair_may_have_all_links_of_its_servers"),),
            ),
            Claim(
                "(b) A server sends at 20 Gbit/s to one server by its left NIC and at 10 Gbit/s "
                "each to two others by its right one, by one queue and by two.", "20, 10, 10",
                (Passes("figure_3_2_b_one_queue_on_the_left_two_on_the_right"),),
            ),
            Claim(
                "(c) Queues on two NICs serve one destination.", "2 queues",
                (Passes("figure_3_2_c_one_destination_over_both_interfaces"),),
            ),
            Claim(
                "(b, d) Bandwidth is decided as unevenly as the traffic is.", "uneven",
                (Passes("figure_3_2_b_and_d_bandwidth_is_uneven_as_the_traffic_is"),),
            ),
        ),
        ("of each NIC 4 % is kept for acknowledgements, so that 20 Gbit/s are 19.2 here",),
    ),
    Entry(
        PAPER, "figures 4.2, 4.4, 4.6 to 4.8", "examples of fusion and co-location",
        FromTests(("tests/optimizer/published/test_thesis_reduction.py",), "figure_4"),
        (
            Claim(
                "Algorithms 1 and 2 fuse, leave and co-locate what the examples say.", "-",
                (
                    Passes("figure_4_2_a_line_fuses_and_keeps_what_runs_beside_it"),
                    Passes("figure_4_2_b_an_edge_with_two_degrees_is_never_fused"),
                    Passes("figure_4_4_the_heavy_end_decides_what_a_fusion_loses"),
                    Passes("figure_4_6_fusing_with_the_critical_successor_waits_for_those_outside"),
                    Passes("figure_4_7_fusion_within_a_group_lets_algorithm_1_fuse_more"),
                    Passes("figure_4_8_light_ungrouped_neighbours_join_a_group"),
                ),
            ),
        ),
    ),
)  # fmt: skip

_ALPHAS = (0.5, 1, 2, 4, 8)
_RATES = (10, 20, 40, 80, 160)
_SAVED = tuple(f"saved by P3 at {rate} Gbit/s a link" for rate in _RATES)
_OF_5_3 = {
    on: {
        "ours": f"thesis (P3, one bandwidth), {on}, ms",
        "MCMC": f"MCMC, {on}, ms",
        "Metis": f"Metis, {on}, ms",
    }
    for on in ("2 servers", "4 servers", "8 servers")
}
_SCHEMES = ("Placeto", "Spotlight", "ColocRL")
_COLOCRL = ("ColocRL, 2 servers, s", "thesis, 2 servers, s")
_ONE_NIC, _BOTH_NICS, _APPLIED = "torchrun, one NIC", "torchrun, both NICs", "applied"
_ARRIVE, _STEP = "gradients arrive, s", "step, s"


def _best_of_5_3(factor: float) -> tuple[AtMost, ...]:
    return tuple(
        AtMost(one["ours"], (one["MCMC"], one["Metis"]), factor) for one in _OF_5_3.values()
    )


_MEASURED = (
    Entry(
        PAPER, "figure 4.3", "the distribution of computing delays",
        FromPreset("thesis-figure-4.3"),
        (
            Claim(
                "The majority (here: half) of the computing demand comes from a few operators "
                "(here: a tenth of those that take time).", "majority",
                (Within(("of all time, in the heaviest tenth",), at_least=0.5, unit="%"),),
            ),
        ),
    ),
    Entry(
        PAPER, "figure 4.5", "what a larger threshold alpha costs",
        FromPreset("thesis-figure-4.5"),
        (
            Claim(
                "A larger alpha never costs less.", "increases",
                tuple(
                    AtMost(f"longest path at {less:g} alpha", (f"longest path at {more:g} alpha",))
                    for less, more in pairwise(_ALPHAS)
                ),
            ),
            Claim(
                "The smallest alpha costs less than the largest.", "increases",
                (
                    AtMost(f"longest path at {_ALPHAS[0]:g} alpha",
                           (f"longest path at {_ALPHAS[-1]:g} alpha",), LESS),
                ),
            ),
        ),
    ),
    Entry(
        PAPER, "figure 5.1", "use of two NICs in data-parallel training, before and after",
        FromReport(
            "docs/benchmarks/job.md", "12. VGG16 on two NICs, by torchrun and applied",
            "python -m benchmarks.job --items 12 --report docs/benchmarks", keys=2,
            times=tuple(
                f"{started}: {seconds}"
                for started in (_ONE_NIC, _BOTH_NICS, _APPLIED)
                for seconds in (_ARRIVE, _STEP)
            ),
            picture="benchmarks/job-two-nics.svg",
        ),
        (
            Claim(
                "After the allocation both network links carry the all-reduce (here: each half, "
                "by at most a tenth more or less).", "both",
                (Within((f"{_APPLIED}: nic1 of all",), 0.45, 0.55, "%"),),
            ),
            Claim(
                "Gradients then take less time in each step (here: less than one interface needs "
                "for them at its full rate).", "narrower",
                (AtMost(f"{_APPLIED}: {_ARRIVE}", (f"{_ONE_NIC}: at full rate, s",), LESS),),
            ),
        ),
        (
            "theirs is VGG16 at batch 512 in TensorFlow 2.16 on two servers with a GPU and two "
            "ports of 1 Gbit/s each; ours is the whole VGG16 at batch 64 (of both ranks) in "
            "PyTorch on two servers of a lab, with one thread and two NICs of 100 Mbit/s each",
            "what theirs used before the allocation is not in the text; ours is compared with "
            "one NIC, which is what gloo uses by itself",
            "their curves are of the first 10 s and in no text, so that no number of theirs "
            "stands beside ours",
            "one NIC cannot carry the gradients faster than at its full rate, so that programs "
            "that ran beside ours do not help the second claim",
        ),
    ),
    Entry(
        PAPER, "figure 5.2", "allocated bandwidth against a non-blocking tree",
        FromPreset("thesis-figure-5.2"),
        (
            Claim(
                "Bandwidth allocation shortens the step at every link bandwidth (by at least 1 %, "
                "below which steps are alike).", "consistently",
                tuple(Within((name,), at_least=TIE, unit="%") for name in _SAVED),
            ),
            Claim(
                "The gain is smaller at each faster link.", "diminishes",
                tuple(AtMost(fast, (slow,), LESS) for slow, fast in pairwise(_SAVED)),
            ),
            Claim(
                "Bandwidth allocation saves up to 11 % of the step.", "up to 11 %",
                tuple(Within((name,), at_least=0.11, unit="%") for name in _SAVED), "once",
            ),
        ),
    ),
    Entry(
        PAPER, "table 5.1", "time to search a placement on four servers",
        FromPreset("thesis-table-5.1"),
        (
            Claim(
                f"Fusion and co-location leave at most 1/{_FUSED.least:.3g} of the operators.",
                f"1/{_FUSED.least:.3g} to 1/{_FUSED.most:.3g}", (Cut("operators", _FUSED.least),),
            ),
            _TABLE_5_1.takes_at_most("The reduction takes", "fusion, s"),
            _TABLE_5_1.takes_at_most(
                "Until it is within 10 % without bandwidth, the solver (here: the sooner of two) "
                "takes", _WITHOUT[0], *_WITHOUT,
            ),
            _TABLE_5_1.takes_at_most("With bandwidth it takes", _WITH[0], *_WITH),
            Claim(
                f"Deciding bandwidth as well takes the solver longer ({_LONGER.least:.1f} to "
                f"{_LONGER.most:.1f} times as long in the paper's table).", "longer",
                tuple(
                    AtMost(without, (with_it,), LESS)
                    for without, with_it in zip(_WITHOUT, _WITH, strict=True)
                ),
            ),
            Claim(
                "The search takes up to 650 times less time than the other methods, of which "
                "MCMC is the slowest. (In the paper's own table it is up to "
                f"{_TABLE_5_1.times(_MCMC, _WITH[0]).most:.0f} times.)", "up to 650x",
                tuple(AtMost(name, (_MCMC,), 1 / 650) for name in _WITH), "once",
            ),
            _TABLE_5_1.takes_at_most("Metis takes", "Metis, s"),
        ),
        ("our MCMC is compiled code, which makes thousands of steps in a second",),
        (
            "that the solver's time grows about linearly with the operators without bandwidth, and "
            "exponentially with it: that sets models against each other (in the paper's own table "
            f"operators grow {_grown('operators'):.1f} times from AlexNet to BERT, and the times "
            f"{_grown(_WITHOUT[0]):.0f} and {_grown(_WITH[0]):.0f} times)",
            "that Metis' time grows linearly with the operators, for the same reason",
        ),
    ),
    Entry(
        PAPER, "figure 5.3", "step by the number of servers, bandwidth not allocated",
        FromPreset("thesis-figure-5.3"),
        (
            Claim(
                "The thesis' step is shorter than those of MCMC and Metis.", "consistently",
                _best_of_5_3(LESS),
            ),
            Claim(
                "Its step is up to 22 % shorter.", "up to 22 %", _best_of_5_3(0.78), "once",
            ),
            Claim(
                "On AlexNet and VGG-16 MCMC comes to comparable steps (here: within 5 %).",
                "comparable",
                tuple(
                    AtMost(one[left], (one[right],), _COMPARABLE)
                    for one in _OF_5_3.values()
                    for left, right in (("MCMC", "ours"), ("ours", "MCMC"))
                ),
                models=("AlexNet", "VGG-16"),
            ),
            Claim(
                "On FNet and BERT it does not.", "not",
                tuple(AtMost(one["ours"], (one["MCMC"],), 1 / _COMPARABLE)
                      for one in _OF_5_3.values()),
                models=("FNet", "BERT"),
            ),
            Claim(
                "Metis' parts wait for each other, which limits how it scales (here: with more "
                "servers its step is not shorter).", "limited",
                (
                    AtMost(_OF_5_3["2 servers"]["Metis"], (_OF_5_3["4 servers"]["Metis"],)),
                    AtMost(_OF_5_3["4 servers"]["Metis"], (_OF_5_3["8 servers"]["Metis"],)),
                ),
            ),
        ),
    ),
    Entry(
        PAPER, "table 5.2", "solver's time under reduction schemes",
        FromPreset("thesis-table-5.2"),
        (
            Claim(
                "The solver is soonest under the thesis' scheme. (In the paper's own table it is "
                "sooner under SpotLight's on FNet and BERT.)", "soonest",
                tuple(
                    AtMost(f"thesis, {on}, s", tuple(f"{one}, {on}, s" for one in _SCHEMES),
                           LESS)
                    for on in ("2 servers", "4 servers")
                ),
            ),
            Claim(
                "It is up to 165 times as fast as under ColocRL's. (In the paper's own table it "
                f"is up to {_TABLE_5_2.times(*_COLOCRL).most:.0f} times.)", "up to 165x",
                tuple(
                    AtMost(f"thesis, {on}, s", (f"ColocRL, {on}, s",), 1 / 165)
                    for on in ("2 servers", "4 servers")
                ),
                "once",
            ),
        ),
        unasked=(
            "that a smaller program spares the solver memory: here a program that is too large is "
            "refused before it is built",
        ),
    ),
    Entry(
        PAPER, "figure 5.4", "step under reduction schemes on two servers",
        FromPreset("thesis-figure-5.4"),
        (
            Claim(
                "Against ColocRL's scheme the step is at most 7 % longer.", "up to 7 %",
                (AtMost("thesis, 2 servers, ms", ("ColocRL, 2 servers, ms",), 1.07),),
            ),
            Claim(
                "Against Placeto's and SpotLight's it is shorter.", "consistently",
                (
                    AtMost("thesis, 2 servers, ms", ("Placeto, 2 servers, ms",), LESS),
                    AtMost("thesis, 2 servers, ms", ("Spotlight, 2 servers, ms",), LESS),
                ),
            ),
        ),
    ),
)  # fmt: skip

ENTRIES = (*_WORKED, *_MEASURED)
ILLUSTRATIONS: Illustrations = (
    (PAPER, "figures 1.1 and 1.2", "column-wise tensor parallelism; a fat tree"),
    (PAPER, "table 3.1", "the notation of the optimization problems"),
    (PAPER, "figure 4.1", "an overview of the solution"),
)
