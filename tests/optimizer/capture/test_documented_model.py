"""The code that docs/model.md prints is captured as it stands there."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.paths import ROOT

BOTH = """
import dataclasses

def validated(batch, seed):
    step = training_step(batch, seed)
    return dataclasses.replace(step, loss=Loss(), validation=step.batches)
"""


def printed(first_line: str, number: int = 0) -> str:
    """The indented block of the document that begins with this line; of several that one."""
    lines = (ROOT / "docs/model.md").read_text().splitlines()
    begin = [k for k, line in enumerate(lines) if line == f"    {first_line}"][number]
    block = []
    for line in lines[begin:]:
        if line and not line.startswith("    "):
            break
        block.append(line)
    return textwrap.dedent("\n".join(block))


def test_the_printed_model_and_metrics_are_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = [printed("import torch"), printed("class Loss(torch.nn.Module):"), BOTH]
    (tmp_path / "documented.py").write_text("\n".join(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    plain = capture("documented:training_step", 8, OptimizerChoice(), 0)
    assert not plain.code.metrics and plain.validation is None
    step = capture("documented:validated", 8, OptimizerChoice(), 0)
    assert tuple(step.code.metrics) == ("accuracy",) and step.validation is not None
    assert tuple(step.validation.code.metrics) == ("accuracy",)


def test_the_printed_model_of_several_lengths_is_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "several.py").write_text(printed("import torch", 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    step = capture("several:texts_of_several_lengths", 4, OptimizerChoice(), 0)
    assert list(step.each_bucket) == ["512", "128"]
    assert {step.bucket_of(step.batches(number)) for number in range(12)} == {"512", "128"}
