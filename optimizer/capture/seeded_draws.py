"""Lets what is drawn in Python be the same in every process."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch._C import default_generator

_DIGITS = 8


@contextmanager
def seeded_draws(*about: str | int) -> Iterator[None]:
    """Inside, what is drawn from torch's generator of the CPU, from `random` and from NumPy's
    global generator depends on `about` alone. Afterwards all three go on as if nothing had been
    drawn. Generators of CUDA are left alone."""
    digest = hashlib.sha256(repr(about).encode()).digest()
    of_torch, of_python = torch.get_rng_state(), random.getstate()
    of_numpy = np.random.get_state()
    default_generator.manual_seed(int.from_bytes(digest[:_DIGITS], "little"))
    random.seed(digest)
    np.random.seed(np.frombuffer(digest, dtype="<u4"))
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
