"""Do models that nobody here wrote train as plain PyTorch does, on one, two and three ranks?

`make test-models` installs what they need and runs this; `make test` does not. Placements and
orders are random. Equal means: losses of all steps, and all parameters, buffers and inputs that
ranks hold after them, by torch.equal.
"""

from __future__ import annotations

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
from tests.held_out.shelf import MODELS, python_name
from tests.job.lazy_network import Mailbox, MailboxTransport, run_step
from tests.job.lazy_training import with_own_values
from tests.optimizer.capture.eager import train_eager
from tests.placements import cluster_of, placement_of, random_devices

STEPS, BATCH, SEED = 3, 8, 3
CHOICE = OptimizerChoice(lr=1e-3)
RANKS, MICRO_BATCHES = (1, 2, 3), (1, 2, 4)

# By what the refusal says, which names the model's own line.
REFUSED = {
    "transformers DeBERTa-v2": r"`if label_index.size\(0\) > 0:.*data-dependent control flow",
    "transformers GPT-J": r"`embed_positions = self._get_embed_positions\(position_ids\)`",
    "transformers CodeGen": r"`sincos = embed_positions\[position_ids\]`",
}
# These are equal on all numbers of ranks, and differ from eager PyTorch in last bits.
ELSE_THAN_EAGER = {
    "torch.nn LSTM": "eager PyTorch runs the CPU's fused kernel, and ranks run matrix products",
    "torch.nn LSTM, two layers, both ways": "eager PyTorch runs the CPU's fused kernel",
    "torch.nn GRU": "eager PyTorch computes the gates in rows of 16 floats, which processors with "
    "vectors of 16 (AVX-512) round in another way than long rows; with AVX2 they are equal",
    "transformers T5, checkpointed": "PyTorch adds the gradients of what several checkpoints read "
    "for each checkpoint first; ranks add them as without checkpoints",
}
if torch.backends.cpu.get_cpu_capability() == "AVX512":
    ELSE_THAN_EAGER["torch.nn GRU"] = (
        "eager PyTorch computes each sigmoid on rows of 16 floats, too short for two vectors of "
        "AVX-512, and then calls another function, which rounds otherwise; ranks have long rows"
    )


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
    eager = train_eager(path, CHOICE, STEPS, BATCH, SEED, accumulate, autocast).losses
    if name in ELSE_THAN_EAGER:
        assert losses == pytest.approx(eager, rel=1e-3 if autocast else 1e-5)
    else:
        assert losses == eager


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(CaptureError, match=REFUSED[name]):
        capture(f"tests.held_out.shelf:{python_name(name)}", BATCH, CHOICE, SEED)


def test_most_of_the_shelf_is_trained() -> None:
    assert len(MODELS) >= 40 and len(MODELS) - len(REFUSED) >= 35
