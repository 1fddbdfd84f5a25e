"""Real ranks report a step's metrics, wherever these are computed, as eager PyTorch has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.job.contract.specification import StepDone
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.job.ranks import run_ranks
from tests.job.test_checkpoint import ADAMW, spread
from tests.models.metrics import NAMES
from tests.optimizer.capture.eager import optimizer_of

MODEL = "tests.models.metrics:without_dropout"
STEPS = 3
# In eager PyTorch random numbers come in another order.
COMPARED = {*NAMES} - {"noise"}


def eager(accumulate: int) -> tuple[list[float], list[dict[str, float]]]:
    step = load_training_step(MODEL, 8, seed=3)
    optimizer = optimizer_of(OptimizerChoice("adamw", 1e-2), step.model)
    losses, metrics = [], []
    for number in range(STEPS):
        parts = [x.chunk(accumulate) for x in step.batches(number)]
        optimizer.zero_grad()
        total: Any = 0
        sums: dict[str, Any] = dict.fromkeys(COMPARED, 0)
        for micro_batch in zip(*parts, strict=True):
            loss, reported = step.model(*micro_batch)
            (loss / accumulate).backward()
            total = total + loss.detach() / accumulate
            shares = {name: reported[name].detach() for name in COMPARED}
            if accumulate > 1:
                shares = {name: value / accumulate for name, value in shares.items()}
            sums = {name: sums[name] + value for name, value in shares.items()}
        losses.append(total.item())
        metrics.append({name: float(value) for name, value in sums.items()})
        optimizer.step()
    return losses, metrics


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_one_two_and_three_ranks_report_what_pytorch_computes(
    tmp_path: Path, accumulate: int
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    captured = capture(MODEL, 8, OptimizerChoice("adamw", 1e-2), 3, accumulate)
    expected = eager(accumulate)
    torch.set_num_threads(threads)
    places = set()
    for devices in (1, 2, 3):
        placement = spread(captured, devices)
        places |= {placement.operators[one] for one in captured.code.metrics.values()}
        ranks = run_ranks(
            placement, tmp_path / str(devices), kind="placed", model=MODEL, batch=8, seed=3,
            accumulate=accumulate, optimizer=ADAMW, steps=STEPS,
            captured_once=devices > 1,  # One rank captures the step itself.
        )  # fmt: skip
        steps = [e for rank in ranks for e in rank.events if isinstance(e, StepDone)]
        for number in range(STEPS):
            reported = [one.metrics for one in steps if one.step == number]
            together = {name: value for some in reported for name, value in some.items()}
            assert sum(map(len, reported)) == len(together) == len(NAMES)
            assert {name: together[name] for name in COMPARED} == expected[1][number]
        assert [loss for rank in ranks for loss in rank.losses] == expected[0]
    assert len(places) > 1
