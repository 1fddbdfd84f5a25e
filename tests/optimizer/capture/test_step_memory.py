"""The memory of steps: are tensors counted once, and only those of the steps?"""

from __future__ import annotations

import torch

from placewire.optimizer.capture.memory import MemoryMeter, heap_in_use, held_bytes
from placewire.optimizer.capture.updates import OptimizerChoice, parameter_update

MIB = 1 << 20


def test_what_stays_is_counted_once() -> None:
    parameter = torch.zeros(1000)
    root = torch.nn.Module()
    root.register_buffer("parameter", parameter)
    root.register_buffer("view", parameter.view(10, 100))
    root.add_module("update", parameter_update(OptimizerChoice("adamw"), parameter))
    step_counter = 4
    assert held_bytes(root) == 3 * 4000 + step_counter
    momentum = parameter_update(OptimizerChoice("sgd", 0.1, {"momentum": 0.9}), parameter)
    root.add_module("update", momentum)
    assert held_bytes(root) == 4000
    momentum(parameter, torch.ones(1000))
    assert held_bytes(root) == 2 * 4000


def test_the_steps_alone_are_measured() -> None:
    meter = MemoryMeter("cpu")
    assert meter.step_bytes is None and meter.program_bytes is None
    before_the_first = torch.ones(48 * MIB)  # 192 MiB, gone before the steps that count
    del before_the_first
    stays = torch.ones(4 * MIB)
    meter.after_first_step(stays.nbytes)
    assert meter.program_bytes is not None and meter.program_bytes > 50 * MIB
    during = torch.ones(16 * MIB)
    del during
    assert meter.step_bytes is not None
    assert 79 * MIB < meter.step_bytes < 96 * MIB
    assert meter.process_peak_bytes > meter.program_bytes + 192 * MIB
    assert stays.sum() == 4 * MIB


def test_what_the_heap_has_in_use_is_read_without_its_holes() -> None:
    read = heap_in_use()
    assert read is not None
    before = read()
    pieces = [torch.ones(MIB // 4) for _ in range(40)]
    assert 40 * MIB <= read() - before < 41 * MIB
    del pieces[::2]
    assert 20 * MIB <= read() - before < 21 * MIB


def test_tensors_are_what_is_in_use_beside_what_stays() -> None:
    meter = MemoryMeter("cpu")
    stays = torch.ones(MIB)
    meter.after_first_step(stays.nbytes)
    assert meter.tensor_bytes is None and meter.heap_in_use is not None
    during = torch.ones(2 * MIB)
    meter.after_reading(meter.heap_in_use())
    del during
    assert meter.tensor_bytes is not None
    assert 12 * MIB <= meter.tensor_bytes < 13 * MIB and stays.sum() == MIB
