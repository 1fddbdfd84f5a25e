"""What `batches` draws depends on the job's seed and the batch's number, and on nothing else."""

from __future__ import annotations

import random

import numpy as np
import torch

from placewire.optimizer.capture.protocol import Tensors, load_training_step
from placewire.optimizer.capture.seeded_draws import seeded_draws

MODEL = "tests.models.drawn:by_the_global_ones"


def seeded_otherwise(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def drawn() -> tuple[float, ...]:
    return float(torch.rand(())), random.random(), np.random.rand()


def alike(one: Tensors, other: Tensors) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_batch_is_the_same_in_every_process_and_after_others() -> None:
    found = []
    for process in (1, 2):
        step = load_training_step(MODEL, 3, seed=7)
        seeded_otherwise(process)
        if process > 1:
            step.batches(4)
        found.append(step.batches(5))
    assert alike(*found)
    assert not alike(found[0], step.batches(6))
    assert not alike(found[0], load_training_step(MODEL, 3, seed=8).batches(5))
    assert step.validation is not None and not alike(found[0], step.validation(5))


def test_the_generators_go_on_as_if_nothing_had_been_drawn() -> None:
    seeded_otherwise(1)
    expected = drawn()
    seeded_otherwise(1)
    inside = []
    for _ in range(2):
        with seeded_draws("a", 1):
            inside.append(drawn())
    assert drawn() == expected
    assert inside[0] == inside[1] != expected


def test_they_do_so_where_a_batch_fails() -> None:
    seeded_otherwise(1)
    expected = drawn()
    seeded_otherwise(1)
    try:
        with seeded_draws("a", 1):
            drawn()
            raise KeyError
    except KeyError:
        assert drawn() == expected
