"""Do models that nobody here wrote train as plain PyTorch does, on one, two and three ranks?

`make test-models` installs what they need and runs this; `make test` does not. Placements and
orders are random. Equal means: losses of all steps, and all parameters, buffers and inputs that
ranks hold after them, by torch.equal. docs/models.md is the table of what comes of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
import torch

from placewire.job.messages.rank_messages import rank_messages
from placewire.job.placed.lower import lower
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.variants import Autocast
from tests.held_out.outcomes import REFUSED, has_other_bits
from tests.held_out.shelf import MODELS, python_name
from tests.job.lazy_network import Mailbox, MailboxTransport, run_step
from tests.job.lazy_training import with_own_values
from tests.optimizer.capture.eager import train_eager
from tests.placements import cluster_of, placement_of, random_devices

STEPS, BATCH, SEED = 3, 8, 3
CHOICE = OptimizerChoice(lr=1e-3)
RANKS, MICRO_BATCHES = (1, 2, 3), (1, 2, 4)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train_on(
    captured: CapturedStep, devices: int
) -> tuple[list[float], Mapping[str, torch.Tensor]]:
    """Losses, and what all ranks hold in the end."""
    graph, cluster = captured.operators, cluster_of(devices)
    placement = placement_of(graph, cluster, random_devices(graph, cluster, 1), order_seed=1)
    box, ranks = Mailbox(), []
    for device in placement.devices_used:
        own, transport = with_own_values(captured), MailboxTransport(box)
        messages = rank_messages(placement, device, ("a",))
        program = lower(own, placement, device, messages, transport)  # type: ignore[arg-type]
        ranks.append((program, transport))
    losses = [run_step(box, ranks, captured.batches(k), k) for k in range(STEPS)]
    return losses, {key: value for program, _ in ranks for key, value in program.held.items()}


@pytest.mark.parametrize(
    ("accumulate", "autocast"), [*((parts, None) for parts in MICRO_BATCHES), (2, "bf16")]
)
@pytest.mark.parametrize("name", [one for one in MODELS if one not in REFUSED])
def test_it_trains_as_in_plain_pytorch(
    name: str, accumulate: int, autocast: Autocast | None
) -> None:
    path = f"tests.held_out.shelf:{python_name(name)}"
    captured = capture(path, BATCH, CHOICE, SEED, accumulate, autocast)
    (losses, held), *others = (train_on(captured, ranks) for ranks in RANKS)
    for own, values in others:
        assert own == losses
        assert values.keys() == held.keys()
        assert all(torch.equal(values[key], held[key]) for key in held)
    eager = train_eager(path, CHOICE, STEPS, BATCH, SEED, accumulate, autocast)
    if has_other_bits(name, in_bf16=autocast is not None):
        assert losses == pytest.approx(eager.losses, rel=1e-3 if autocast else 1e-5)
    else:
        assert losses == eager.losses
        trained = {key.partition("_")[2]: held[key] for key in captured.values if key in held}
        assert trained.keys() >= {key.partition("_")[2] for key in captured.code.writers.values()}
        different = [k for k, v in trained.items() if not torch.equal(v, eager.values[k])]
        assert not different


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="its GRU is compared above"
)
def test_a_gru_trains_as_in_plain_pytorch_on_processors_without_avx_512() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", __file__, "-k", "it_trains and GRU"],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "\n4 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(CaptureError, match=REFUSED[name].said):
        capture(f"tests.held_out.shelf:{python_name(name)}", BATCH, CHOICE, SEED)


def test_most_of_the_shelf_is_trained() -> None:
    assert len(MODELS) >= 40 and len(MODELS) - len(REFUSED) >= 35
