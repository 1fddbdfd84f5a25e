"""Tables and figures of QuickP, "Efficient Device Placement for Distributed DNN Training"."""

from __future__ import annotations

from benchmarks.reproduction.entry import Claim, Entry, FromPreset, Illustrations
from benchmarks.reproduction.rules import LESS, AtMost, Cut, Within
from benchmarks.reproduction.thesis import MEMORY

PAPER = "QuickP"
_COMPARABLE = 1.05
_ON = ("2 GPUs", "4 GPUs", "6 GPUs")
_SECONDS = {"2 GPUs": 3.2, "4 GPUs": 7.1, "6 GPUs": 18.9}


def _walk(steps: str, unit: str) -> str:
    return f"MCMC, {steps} steps, 2 GPUs, {unit}"


def _best(factor: float) -> tuple[AtMost, ...]:
    return tuple(
        AtMost(f"QuickP, {on}, ms", (f"MCMC, {on}, ms", f"Metis, {on}, ms"), factor) for on in _ON
    )


ENTRIES = (
    Entry(
        PAPER, "table I", "time to search a placement", FromPreset("icc-table-1"),
        (
            Claim(
                "Fusion leaves at most a sixth of the operators.", "1/6 to 1/7",
                (Cut("operators", 6.0),),
            ),
            Claim(
                "Fusion takes at most 1 s.", "<= 1.0 s",
                (Within(("fusion, s",), at_most=1.0, unit="s"),),
            ),
            *(
                Claim(
                    f"On {on} the solver is within 5 % in at most {seconds} s.", f"<= {seconds} s",
                    (Within((f"solver, {on}, s",), at_most=seconds, unit="s"),),
                )
                for on, seconds in _SECONDS.items()
            ),
            Claim(
                "The solver's time grows with the number of GPUs.", "grows",
                (
                    AtMost("solver, 2 GPUs, s", ("solver, 4 GPUs, s",), LESS),
                    AtMost("solver, 4 GPUs, s", ("solver, 6 GPUs, s",), LESS),
                ),
            ),
            Claim(
                "Metis takes at most 4.2 s.", "<= 4.2 s",
                (Within(("Metis, s",), at_most=4.2, unit="s"),),
            ),
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
                "The search takes up to 2,000 times less time than the other methods.",
                "> 2,000x",
                (AtMost("QuickP, 2 GPUs, s", (_walk("25,000", "s"),), 1 / 2000),), "once",
            ),
        ),
        (
            "our MCMC is compiled code, which makes thousands of steps in a second",
            MEMORY,
        ),
    ),
    Entry(
        PAPER, "figure 6", "step by the number of GPUs", FromPreset("icc-figure-6"),
        (
            Claim(
                "QuickP's placement is never slower than the better one of MCMC and Metis.",
                "never", _best(1.0),
            ),
            Claim("Its step is up to 35 % shorter.", "up to 35 %", _best(0.65), "once"),
            Claim(
                "With more devices Metis' step is not shorter.", "not shorter",
                (
                    AtMost("Metis, 2 GPUs, ms", ("Metis, 4 GPUs, ms",)),
                    AtMost("Metis, 4 GPUs, ms", ("Metis, 6 GPUs, ms",)),
                ),
            ),
        ),
        (MEMORY,),
    ),
)  # fmt: skip
ILLUSTRATIONS: Illustrations = (
    (PAPER, "figure 1", "the example of the thesis' figure 3.1, which is above"),
    (PAPER, "figure 2", "an overview of the solution"),
    (PAPER, "figures 3 and 4", "the examples of the thesis' figures 4.2 and 4.4"),
)
