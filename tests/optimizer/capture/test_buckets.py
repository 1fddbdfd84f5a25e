"""A model whose batches have several shapes is captured as one graph for each, of one state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from placewire.optimizer.capture import protocol
from placewire.optimizer.capture.buckets import of_bucket, only_bucket, shares_of
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.partial_values import capture_part
from placewire.optimizer.capture.protocol import TrainingStep, bucket_of, load_training_step
from placewire.optimizer.capture.step import capture, captured_from
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.models import lengths

MODEL = "tests.models.lengths:training_step"
CHOICE = OptimizerChoice()
BATCH, SEED = 4, 3


def test_all_buckets_are_of_the_same_state() -> None:
    captured = capture(MODEL, BATCH, CHOICE, SEED)
    assert list(captured.each_bucket) == ["12", "5", "8"]
    hashes = {one.operators.structure_hash for one in captured.each_bucket.values()}
    assert len(hashes) == 3
    for name, one in captured.buckets.items():
        assert one.values.keys() == captured.values.keys()
        assert all(one.values[i] is captured.values[i] for i in captured.values)
        assert one.code.constants.items() <= captured.code.constants.items()
        assert one.validation is not None
        assert one.operators.notes["bucket"] == name
        alone = capture_alone(name)
        assert alone.operators.structure_hash == one.operators.structure_hash
    # The small buffer that all of them read is one constant, so that it is loaded once.
    assert [*captured.code.constant_names.values()] == ["model.numbers"]
    batches = [captured.bucket_of(captured.batches(k)) for k in range(len(lengths.TURNS))]
    assert batches == [*map(str, lengths.TURNS)]


def capture_alone(name: str) -> CapturedStep:
    step = of_bucket(load_training_step(MODEL, BATCH, SEED), name, MODEL)
    return captured_from(step, CaptureOptions(MODEL, BATCH, CHOICE, SEED))


def test_batches_of_one_bucket_are_found_in_one_pass() -> None:
    step, read = load_training_step(MODEL, BATCH, SEED), list[int]()

    def batches(number: int) -> tuple[torch.Tensor, ...]:
        read.append(number)
        return step.batches(number)

    only = only_bucket(replace(step, batches=batches), "5", MODEL)
    own = [k for k in range(40) if bucket_of(step, step.batches(k)) == "5"]
    for number in (0, 1, 2, 3, 1, 4):
        given, expected = only.batches(number), step.batches(own[number])
        assert all(map(torch.equal, given, expected))
    again = [own[1]]
    assert sorted(read) == sorted([*range(own[4] + 1), *again])


def test_only_wanted_values_are_made_and_all_buckets_have_them() -> None:
    whole = capture(MODEL, BATCH, CHOICE, SEED)
    wanted = sorted(whole.code.parameters)[:3]
    part = capture_part(CaptureOptions(MODEL, BATCH, CHOICE, SEED), wanted=wanted, others=False)
    assert not part.note
    for one in part.step.each_bucket.values():
        for identifier in wanted:
            assert torch.equal(one.values[identifier], whole.values[identifier])
            assert one.values[identifier] is part.step.values[identifier]
        for name, value in one.code.constants.items():
            assert torch.equal(value, whole.code.constants[name])


def test_a_bucket_that_trains_other_weights_is_refused() -> None:
    with pytest.raises(
        CaptureError,
        match=r"without_a_weight: bucket '5' does not train what '12' trains: it does not read "
        r"parameter_model_long_bias, parameter_model_long_weight\. Every bucket must",
    ):
        capture("tests.models.lengths:without_a_weight", BATCH, CHOICE, SEED)


def test_a_batch_of_no_bucket_names_its_number_and_all_buckets() -> None:
    step = load_training_step("tests.models.lengths:of_another_length", BATCH, SEED)
    step.batches(1)
    with pytest.raises(
        CaptureError,
        match=r"batches\(2\) returned int64\[4, 7\], int64\[4, 7\], which are the shapes and types "
        r"of no bucket: '12' has int64\[4, 12\], .*'5' has .*'8' has .*Pad each batch up",
    ):
        step.batches(2)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"buckets": {12: lengths.batch_of(4, 12, 0)}},
            "12 is no name; accepted: a name of up to 64",
        ),
        ({"buckets": {"--out": lengths.batch_of(4, 12, 0)}}, "'--out' is no name"),
        ({"buckets": {"long": [torch.zeros(1)]}}, r"buckets\['long'\] must be a tuple of tensors"),
        (
            {"buckets": {k: lengths.batch_of(4, 12, 0) for k in ("one", "two")}},
            "'one' and 'two' have the same shapes and types",
        ),
        (
            {"buckets": {"5": lengths.batch_of(4, 5, 0)}},
            r"none has the shapes and types of example_inputs, int64\[4, 12\], int64\[4, 12\]",
        ),
    ],
)
def test_buckets_that_are_wrong_are_refused(
    fields: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(batch: int, seed: int) -> TrainingStep:
        return replace(lengths.training_step(batch, seed), **fields)

    monkeypatch.setattr(protocol, "_find_function", lambda path: made)
    with pytest.raises(CaptureError, match=said):
        load_training_step(MODEL, BATCH, SEED)


def test_a_profile_measures_one_bucket_and_counts_how_often_each_comes() -> None:
    step = load_training_step(MODEL, BATCH, SEED)
    for name in (None, "5"):
        own = of_bucket(step, name, MODEL)
        assert protocol.bucket_of(step, own.batches(1)) == (name or "12")
        assert own.batches(0)[0] is not own.batches(0)[0]
    with pytest.raises(CaptureError, match="has no bucket '6'; it has '12', '5', '8'"):
        of_bucket(step, "6", MODEL)
    assert shares_of(step, 7, 64) == {"12": 3 / 7, "5": 1 / 7, "8": 3 / 7}
    assert sum(shares_of(step, 1_000, 10).values()) == pytest.approx(1)
