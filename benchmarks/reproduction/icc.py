"""Tables and figures of QuickP, "Efficient Device Placement for Distributed DNN Training"."""

from __future__ import annotations

from benchmarks.reproduction.entry import Claim, Entry, FromPreset, Illustrations, Never
from benchmarks.reproduction.printed import Printed
from benchmarks.reproduction.rules import LESS, AtMost, Cut

PAPER = "QuickP"
_COMPARABLE = 1.05
_ON = ("2 GPUs", "4 GPUs", "6 GPUs")
_TABLE_1 = Printed.in_preset("icc-table-1")
_FUSED = _TABLE_1.cuts("operators")


def _walk(steps: str, unit: str) -> str:
    return f"MCMC, {steps} steps, 2 GPUs, {unit}"


def _gain(steps: str, over: str) -> str:
    return f"MCMC, saved by {steps} steps over {over} steps"


def _best(factor: float) -> tuple[AtMost, ...]:
    return tuple(
        AtMost(f"QuickP, {on}, ms", (f"MCMC, {on}, ms", f"Metis, {on}, ms"), factor) for on in _ON
    )


ENTRIES = (
    Entry(
        PAPER, "figure 1", "four operators on two GPUs",
        Never(
            "the operators' times are drawn, and the text has none of them; the thesis' figure "
            "3.1, which is above, is a smaller example of this kind"
        ),
    ),
    Entry(
        PAPER, "table I", "time to search a placement", FromPreset("icc-table-1"),
        (
            Claim(
                f"Fusion leaves at most 1/{_FUSED.least:.3g} of the operators.",
                f"1/{_FUSED.least:.3g} to 1/{_FUSED.most:.3g}", (Cut("operators", _FUSED.least),),
            ),
            _TABLE_1.takes_at_most("Fusion takes", "fusion, s"),
            *(
                _TABLE_1.takes_at_most(
                    f"Until it is within 5 % on {on}, the solver takes", f"solver, {on}, s"
                )
                for on in _ON
            ),
            Claim(
                "The solver's time grows with the number of GPUs.", "grows",
                (
                    AtMost("solver, 2 GPUs, s", ("solver, 4 GPUs, s",), LESS),
                    AtMost("solver, 4 GPUs, s", ("solver, 6 GPUs, s",), LESS),
                ),
            ),
            _TABLE_1.takes_at_most("Metis takes", "Metis, s"),
        ),
        unasked=(
            "that the solver's time need not grow with the operators: that sets models against "
            "each other",
            "that Metis takes the same time for any number of GPUs: ours is asked on four",
        ),
    ),
    Entry(
        PAPER, "figure 5", "MCMC by its number of steps, on two GPUs", FromPreset("icc-figure-5"),
        (
            Claim(
                "MCMC's step gets shorter with its steps.", "shorter",
                (
                    AtMost(_walk("15,000", "ms"), (_walk("5,000", "ms"),), LESS),
                    AtMost(_walk("25,000", "ms"), (_walk("15,000", "ms"),), LESS),
                ),
            ),
            Claim(
                "More steps gain less and less.", "diminishing",
                (AtMost(_gain("25,000", "15,000"), (_gain("15,000", "5,000"),), LESS),),
            ),
            Claim(
                "On AlexNet MCMC comes to a similar step (here: within 5 %).", "similar",
                (
                    AtMost(_walk("25,000", "ms"), ("QuickP, 2 GPUs, ms",), _COMPARABLE),
                    AtMost("QuickP, 2 GPUs, ms", (_walk("25,000", "ms"),), _COMPARABLE),
                ),
                models=("AlexNet",),
            ),
            Claim(
                "On FNet and BERT it does not.", "not",
                (AtMost("QuickP, 2 GPUs, ms", (_walk("25,000", "ms"),), 1 / _COMPARABLE),),
                models=("FNet", "BERT"),
            ),
            Claim(
                "There is a model on which the search takes 2,000 times less time than MCMC's.",
                "> 2,000x",
                (AtMost("QuickP, 2 GPUs, s", (_walk("25,000", "s"),), 1 / 2000),), "once",
            ),
        ),
        (
            "our MCMC is compiled code, which makes thousands of steps in a second",
        ),
    ),
    Entry(
        PAPER, "figure 6", "step by the number of GPUs", FromPreset("icc-figure-6"),
        (
            Claim(
                "QuickP's step is shorter than those of MCMC and Metis.", "consistently",
                _best(LESS),
            ),
            Claim("Its step is up to 35 % shorter.", "up to 35 %", _best(0.65), "once"),
            Claim(
                "Metis' parts wait for each other, which limits how it scales (here: with more "
                "devices its step is not shorter).", "limited",
                (
                    AtMost("Metis, 2 GPUs, ms", ("Metis, 4 GPUs, ms",)),
                    AtMost("Metis, 4 GPUs, ms", ("Metis, 6 GPUs, ms",)),
                ),
            ),
        ),
    ),
)  # fmt: skip
ILLUSTRATIONS: Illustrations = (
    (PAPER, "figure 2", "an overview of the solution"),
    (PAPER, "figures 3 and 4", "examples like the thesis' figures 4.2 and 4.4, which are above"),
)
