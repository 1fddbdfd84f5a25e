"""The numbers of operators, tensors and parameters that documents tell are those of captures."""

from __future__ import annotations

from collections import Counter

import pytest

from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.partial_values import capture_part
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.operator_graph import PARAMETER, OperatorGraph
from placewire.optimizer.reductions.written_updates import written_updates
from tests.paths import ROOT

MODELS = {
    "AlexNet": "alexnet:training_step", "VGG16": "vgg16:training_step",
    "VGG16 with batch norms": "vgg16:training_step_batch_norm", "FNet": "fnet:training_step",
    "BERT": "bert:training_step",
}  # fmt: skip
CHEAP = ("AlexNet", "alexnet")
FLOAT_BYTES = 4
# Of a parameter under AdamW, with the optimizer's state.
OF_AN_UPDATE = 40


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(head: str) -> list[list[str]]:
    _, _, after = (ROOT / "docs" / "model.md").read_text().partition(f"| {head} |")
    return [cells(line) for line in after.partition("\n\n")[0].splitlines()[2:]]


def each(head: str) -> pytest.MarkDecorator:
    """The rows of a table; those that take long to capture are for `make test-thorough`."""
    rows = [
        pytest.param(
            row, marks=pytest.mark.slow if name in CHEAP else pytest.mark.thorough, id=name
        )
        for row in table(head)
        for name in [row[0].partition(",")[0].strip("`")]
    ]
    return pytest.mark.parametrize("row", rows)


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


def captured(model: str, batch: int, *, decompose: bool = False, parts: int = 1) -> OperatorGraph:
    asked = CaptureOptions(
        f"placewire.examples.models.{model}", batch, OptimizerChoice(), 0, accumulate=parts,
        decompose=decompose,
    )  # fmt: skip
    return capture_part(asked, wanted=(), others=False).step.operators


@each("model, batch | thesis, table 5.1")
def test_a_decomposed_step_has_as_many_operators_as_is_told(row: list[str]) -> None:
    named, _, whole, fine, in_parts = row
    name, _, batch = named.rpartition(", ")
    model = MODELS[name]
    assert captured(model, int(batch)).operator_count == number(whole)
    graph = captured(model, int(batch), decompose=True)
    assert graph.operator_count == number(fine)
    update = written_updates(graph)
    assert set(Counter(update[update >= 0].tolist()).values()) == {OF_AN_UPDATE}
    if name == "AlexNet":
        count = update.max() + 1
        said = f"of AlexNet's {fine} operators {OF_AN_UPDATE * count} are {count} updates"
        text = (ROOT / "docs" / "design" / "search.md").read_text()
        assert said in " ".join(text.split())
    for one in filter(None, in_parts.split("; ")):
        parts, count = one.split(": ")
        graph = captured(model, int(batch), decompose=True, parts=int(parts))
        assert graph.operator_count == number(count)


@each("`placewire.examples.models.`")
def test_an_example_has_as_many_operators_tensors_and_parameters_as_is_told(row: list[str]) -> None:
    name, batch, operators, tensors, parameters, *_ = row
    path, _, function = name.split(",")[0].strip("`").partition(":")
    graph = captured(f"{path}:{function or 'training_step'}", number(batch))
    assert graph.operator_count == number(operators)
    assert graph.tensor_count == number(tensors)
    values = sum(
        max(int(graph.tensor_bytes[k]) for k in graph.output_tensors(i)) // FLOAT_BYTES
        for i, kind in enumerate(graph.types)
        if kind == PARAMETER
    )
    assert f"{values / 1e6:,.1f} M" == parameters
