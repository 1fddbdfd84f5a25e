"""Tables and figures of "A structure-aware framework for learning device placements on computation
graphs"."""

from __future__ import annotations

from benchmarks.reproduction.entry import Claim, Entry, FromPreset, Illustrations, Never
from benchmarks.reproduction.rules import LESS, AtMost

PAPER = "HSDAG"
_OURS = "HSDAG, s"
_RIVALS = ("CPU-only, s", "GPU-only, s", "Placeto, s", "RNN-based, s")
_SAVED = {"Inception-V3": 0.179, "ResNet": 0.521, "BERT": 0.582}
_ORIGINAL = "original, less than CPU-only"

ENTRIES = (
    Entry(
        PAPER, "table 1", "nodes, edges and degrees of the computation graphs",
        Never("the graphs are OpenVINO's, and the table's body is not in the paper's text"),
    ),
    Entry(
        PAPER, "table 2", "step of methods on a CPU and a GPU", FromPreset("hsdag-table-2"),
        (
            Claim(
                "HSDAG's step is shorter than that of one device and of what others learn.",
                "shorter", (AtMost(_OURS, _RIVALS, LESS),),
            ),
            *(
                Claim(
                    f"On {model} it is {saved:.1%} shorter than on the CPU.", f"{saved:.1%}",
                    (AtMost(_OURS, ("CPU-only, s",), 1 - saved),), models=(model,),
                )
                for model, saved in _SAVED.items()
            ),
            Claim(
                "It is up to 60.24 % shorter than that of another baseline, which the paper does "
                "not name.", "up to 60.24 %",
                tuple(AtMost(_OURS, (rival,), 1 - 0.6024) for rival in _RIVALS[1:]), "once",
            ),
        ),
        (
            "where the step on the GPU alone is as much shorter than on the CPU, a claim against "
            "the CPU says nothing of HSDAG; the first claim, against both, does",
        ),
    ),
    Entry(
        PAPER, "table 3", "what features give", FromPreset("hsdag-table-3"),
        tuple(
            Claim(
                f"Without {feature} less is saved on Inception-V3.", paper,
                (AtMost(f"without {name}, less than CPU-only", (_ORIGINAL,), LESS),),
                models=("Inception-V3",),
            )
            for feature, name, paper in (
                ("features of the graph's structure", "graph structure", "14.8 < 17.9 %"),
                ("output shapes", "output shape", "8.6 < 17.9 %"),
                ("the nodes' positions", "node ID", "8.6 < 17.9 %"),
            )
        ),
    ),
    Entry(
        PAPER, "figure 2", "the graphs before and after partition and pooling",
        Never("the drawing has no figures, and none is in the text"),
    ),
)  # fmt: skip
ILLUSTRATIONS: Illustrations = (
    (PAPER, "figure 1", "an overview"),
    (PAPER, "table 4", "the parameters, which engine `hsdag` has"),
)
