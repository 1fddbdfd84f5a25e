"""Trains on several ranks in one process, each with values of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from placewire.job.messages.rank_messages import rank_messages
from placewire.job.placed.lower import RankProgram, lower
from placewire.job.transport.transport import Alone
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.placement import Placement
from tests.job.lazy_network import Mailbox, MailboxTransport, run_step
from tests.placements import cluster_of, placement_of, random_devices

STEPS = 4


def with_own_values(captured: CapturedStep) -> CapturedStep:
    """Returns the step with copies of its values, constants and what no step uses included, as if
    it ran in a process of its own."""
    code = replace(
        captured.code,
        parameters={k: v.clone() for k, v in captured.code.parameters.items()},
        buffers={k: v.clone() for k, v in captured.code.buffers.items()},
        constants={k: v.clone() for k, v in captured.code.constants.items()},
    )
    others = {name: value.clone() for name, value in captured.names.others.items()}
    return replace(captured, code=code, names=replace(captured.names, others=others))


def program_of(
    captured: CapturedStep,
    placement: Placement,
    device: str,
    transport: MailboxTransport | Alone,
    ranks: tuple[str, ...] = (),
) -> RankProgram:
    """ranks: the devices of all ranks, where the placement uses fewer of them."""
    messages = rank_messages(placement, device, ("a",), 1, ranks)
    return lower(captured, placement, device, messages, transport)  # type: ignore[arg-type]


def train(
    captured: CapturedStep, placement: Placement, steps: int = STEPS
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Returns the losses, and the parameters and buffers afterwards."""
    box = Mailbox()
    ranks: list[tuple[RankProgram, MailboxTransport]] = []
    for device in placement.devices_used:
        transport = MailboxTransport(box)
        own = with_own_values(captured)
        ranks.append((program_of(own, placement, device, transport), transport))
    losses = [run_step(box, ranks, captured.batches(step), step) for step in range(steps)]
    assert not box.pending and not box.copied
    return losses, values_of([program for program, _ in ranks], captured)


def values_of(programs: Sequence[RankProgram], captured: CapturedStep) -> dict[str, torch.Tensor]:
    held = [
        {k: v for k, v in program.module.named_buffers() if k in captured.values}
        for program in programs
    ]
    assert sum(len(values) for values in held) == len(captured.values), "held once, by its rank"
    return {k: v for values in held for k, v in values.items()}


def on_one_device(captured: CapturedStep) -> Placement:
    cluster = cluster_of(1)
    graph = captured.operators
    return placement_of(graph, cluster, random_devices(graph, cluster, 0))


def joined(captured: CapturedStep, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values by their names in PyTorch, shards put together. A weight whose replicas differ
    equals no other: it is not a number."""
    parts: dict[str, dict[int, torch.Tensor]] = {}
    for node, value in values.items():
        for part in captured.names.of[node]:
            found = parts.setdefault(part.names[0].key, {})
            start, own = part.shard.start if part.shard else 0, part.within(value)
            same = torch.equal(found.setdefault(start, own), own)
            found[start] = own if same else torch.full_like(own, torch.nan)
    return {
        name: torch.cat([value for _, value in sorted(some.items())]) if len(some) > 1 else some[0]
        for name, some in parts.items()
    }
