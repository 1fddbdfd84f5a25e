"""`python -m tests.held_out.page`: writes docs/models.md, the table of what the shelf's models do.

What it says is what models_of_others.py tests, of the same names and reasons.
"""

from __future__ import annotations

import re

from reference.text import paragraph
from tests.held_out.outcomes import OTHER_BITS, REFUSED
from tests.held_out.shelf import MODELS
from tests.paths import ROOT

PAGE = ROOT / "docs" / "models.md"
_LOCK = ROOT / "tests" / "held_out" / "requirements.lock"
_EQUAL, _OTHER = "to the last bit", "up to last bits"


def page() -> str:
    (version,) = re.findall(r"^transformers==(\S+)$", _LOCK.read_text(), re.M)
    trained = len(MODELS) - len(REFUSED)
    equal = trained - sum(one.in_float32 for one in OTHER_BITS.values())
    equal_in_bf16 = trained - sum(one.in_bf16 for one in OTHER_BITS.values())
    lines = [
        "# Models that nobody here wrote", "",
        "Made from the tests by `make reference`; change it there.", "",
        paragraph(
            f"`make test-models` trains small configurations of {len(MODELS)} models of "
            f"`transformers` {version} and of `torch.nn`. {trained} are trained, in one, two and "
            "four micro-batches, on one, two and three ranks with random placements: losses, "
            "parameters and buffers are the same to the last bit on any number of ranks. "
            f"{equal} of them in float32, and {equal_in_bf16} under `autocast: bf16`, equal eager "
            "PyTorch to the last bit as well, in the losses of three steps of AdamW and in the "
            "parameters and buffers after them; the others differ from it in last bits. What is "
            "refused is refused before anything is trained, with the line of the model's source."
        ), "",
        paragraph(
            "Dropout is 0 there, since eager PyTorch draws other masks. Sizes are small; operators "
            "are those of the large ones. A model that skips layers by a random number "
            "(`layerdrop`) is refused where the probability is above 0. `timm` is not among them: "
            "it needs torchvision, of which there was no CPU build for PyTorch 2.13."
        ), "",
        "| model | trained | equal to eager PyTorch | under `autocast: bf16` | why |",
        "|---|---|---|---|---|",
        *(_row(name) for name in sorted(MODELS, key=str.casefold)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _row(name: str) -> str:
    if name in REFUSED:
        return f"| {name} | no | | | {REFUSED[name].why} |"
    known = OTHER_BITS.get(name)
    if known is None:
        return f"| {name} | yes | {_EQUAL} | {_EQUAL} | |"
    plain, bf16 = (_OTHER if other else _EQUAL for other in (known.in_float32, known.in_bf16))
    return f"| {name} | yes | {plain} | {bf16} | {known.why} |"


if __name__ == "__main__":
    PAGE.write_text(page())
