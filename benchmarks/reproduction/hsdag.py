"""Tables and figures of "A structure-aware framework for learning device placements on computation
graphs"."""

from __future__ import annotations

from benchmarks.reproduction.entry import Claim, Entry, FromPreset, Illustrations, Never
from benchmarks.reproduction.printed import Printed
from benchmarks.reproduction.rules import LESS, AtMost

PAPER = "HSDAG"
_OURS = "HSDAG, s"
_RIVALS = ("CPU-only, s", "GPU-only, s", "Placeto, s", "RNN-based, s")
_TABLE_2, _TABLE_3 = Printed.in_preset("hsdag-table-2"), Printed.in_preset("hsdag-table-3")
_MODELS = ("Inception-V3", "ResNet", "BERT")
_ON = "BERT"
_OF_PLACETO = _TABLE_2.of(_OURS, _ON) / _TABLE_2.of("Placeto, s", _ON)


def _faster(method: str) -> float:
    """Returns the paper's speedup: the part of the CPU's step that is saved, in per cent."""
    return 100 * (1 - _TABLE_2.of(method, _ON) / _TABLE_2.of("CPU-only, s", _ON))


def _saved(variant: str, model: str) -> float:
    """Of the CPU's step, in per cent."""
    return _TABLE_3.of(_of(variant), model)


def _of(variant: str) -> str:
    return f"{variant}, less than CPU-only"


def _less(says: str, variant: str, than: str, *models: str) -> Claim:
    """says: of Inception-V3, where the text has numbers, and perhaps of other models."""
    fewer, more = (_saved(one, _MODELS[0]) for one in (variant, than))
    rule = AtMost(_of(variant), (_of(than),), LESS)
    return Claim(says, f"{fewer:g} < {more:g} %", (rule,), models=models)


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
                    f"On {model} it is {_saved('original', model):g} % shorter than on the CPU.",
                    f"{_saved('original', model):g} %",
                    (AtMost(_OURS, ("CPU-only, s",), 1 - _saved("original", model) / 100,
                            unless="GPU-only, s"),),
                    models=(model,),
                )
                for model in _MODELS
            ),
            Claim(
                f"On {_ON} it is {1 - _OF_PLACETO:.1%} shorter than Placeto's. (The text says up "
                "to 60.24 % against a baseline. That is the difference between what HSDAG and "
                f"Placeto save there of the CPU's step: {_faster(_OURS):.3g} and "
                f"{_faster('Placeto, s'):.3g} %.)",
                "up to 60.24 %",
                (AtMost(_OURS, ("Placeto, s",), _OF_PLACETO),), models=(_ON,),
            ),
        ),
        (
            "where the step on the GPU alone is as much shorter than on the CPU, as it is not in "
            "the paper, a claim against the CPU says nothing of HSDAG; the first claim, against "
            "both, does",
            "the choices of OpenVINO, with which the paper compares as well, are no rivals here",
        ),
    ),
    Entry(
        PAPER, "table 3", "what features give", FromPreset("hsdag-table-3"),
        (
            _less("Without features of the graph's structure less is saved on Inception-V3.",
                  "without graph structure", "original", "Inception-V3"),
            _less("Without output shapes less is saved on all models.",
                  "without output shape", "original"),
            _less("Without the nodes' positions less is saved on Inception-V3.",
                  "without node ID", "original", "Inception-V3"),
            _less("Output shapes matter more than the graph's structure.",
                  "without output shape", "without graph structure", "Inception-V3"),
            _less("So do the nodes' positions: less is saved without them.",
                  "without node ID", "without graph structure", "Inception-V3"),
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
