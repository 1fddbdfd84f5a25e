"""Does the example of a user's own model train as its plan has it, and on two ranks as on one?

`make test-models` installs transformers, which it needs, and runs this; `make test` does not.
"""

from __future__ import annotations

import pytest
import torch

from placewire.controller.plan.plan_file import load_plan
from placewire.optimizer.capture.step import capture
from tests.held_out.models_of_others import CHOICE, one_thread, train_on  # noqa: F401 - a fixture
from tests.paths import ROOT

EXAMPLE = ROOT / "examples" / "bring_your_own"


def test_it_trains_as_its_plan_says_on_one_rank_and_on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    job = load_plan(EXAMPLE / "plan.yaml").job
    assert job.kind == "placed" and isinstance(job.accumulate, int)
    captured = capture(job.model, job.batch, CHOICE, job.seed, job.accumulate)
    (losses, held), (own, values) = (train_on(captured, ranks) for ranks in (1, 2))
    assert own == losses and losses[-1] < losses[0]
    assert values.keys() == held.keys()
    assert all(torch.equal(values[key], held[key]) for key in held)
    assert captured.validation is not None and captured.code.metrics
