"""Bundles: does each tensor arrive as it was when it was made, and are wrong bundles refused?"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, rank_messages
from placewire.job.placed.lower import Pack, Send, Unpack
from placewire.job.placed.replay import ReceiveAction, SendAction, replay_actions
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.operator_graph import (
    OperatorGraph,
    OperatorRow,
    TensorRow,
    build_graph,
)
from placewire.optimizer.placement import Placement, Sent
from tests.job.lazy_network import Mailbox, MailboxTransport
from tests.job.lazy_training import on_one_device, program_of, train, with_own_values
from tests.placements import cluster_of, placement_of

BUFFER = "buffer_model_count"


@pytest.fixture(scope="module")
def counting() -> CapturedStep:
    return capture("tests.models.counting:training_step", 3, OptimizerChoice("sgd", 0.1), 3)


def bundled(placement: Placement, producers: tuple[str, ...], **change: Any) -> Placement:
    """The first messages of these producers in one, which `change` makes wrong."""
    joined = [next(m for m in placement.messages if m.producer == name) for name in producers]
    *others, last = joined
    more = {
        "bundled": tuple(sent for one in others for sent in one.tensors),
        "bytes": sum(one.bytes for one in joined),
    }
    messages = [m for m in placement.messages if m not in joined]
    messages.append(last.model_copy(update=more | change))
    return placement.model_copy(update={"messages": tuple(messages)})


def buffer_overwritten_before_its_bundle_leaves(counting: CapturedStep) -> Placement:
    graph, cluster = counting.operators, cluster_of(2)
    there = {"input_1", "add", "mse_loss", "mse_loss_backward", "t_1"}
    devices = {name: "s2/0" if name in there else "s1/0" for name in graph.ids}
    placement = placement_of(graph, cluster, devices)
    first = (BUFFER, "mul", "copy_model_count")
    rest = tuple(name for name in placement.order["s1/0"] if name not in first)
    order = {**placement.order, "s1/0": (*first, *rest)}
    return bundled(placement.model_copy(update={"order": order}), (BUFFER, "addmm"))


def test_what_is_overwritten_before_its_bundle_leaves_arrives_as_it_was(
    counting: CapturedStep,
) -> None:
    placement = buffer_overwritten_before_its_bundle_leaves(counting)
    expected_losses, expected = train(counting, on_one_device(counting))
    losses, values = train(counting, placement)
    assert losses == expected_losses
    assert all(torch.equal(values[name], value) for name, value in expected.items())
    assert float(values[BUFFER][0]) > 1


def packed_when_the_last_is_there(patch: pytest.MonkeyPatch) -> None:
    """A bundle keeps its tensors, which operators may overwrite, until it leaves."""
    pack, send = Pack.forward, Send.forward

    def kept(self: Pack, value: torch.Tensor, wire: Any = None) -> Any:
        return [*(wire or ()), (self, value)]

    def sent(self: Send, value: Any) -> None:
        wire = value
        if isinstance(value, list):
            wire = None
            for one, tensor in value:
                wire = pack(one, tensor, wire)
        send(self, wire)

    patch.setattr(Pack, "forward", kept)
    patch.setattr(Send, "forward", sent)


def unpacked_from_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """Each tensor of a bundle is taken for the first."""

    def unpacked(self: Unpack, wire: torch.Tensor) -> torch.Tensor:
        return self.layout.unpack(wire[: self.layout.wire_bytes])

    patch.setattr(Unpack, "forward", unpacked)


@pytest.mark.parametrize("mutation", [packed_when_the_last_is_there, unpacked_from_the_beginning])
def test_without_a_rule_of_bundles_it_trains_otherwise(
    counting: CapturedStep,
    monkeypatch: pytest.MonkeyPatch,
    mutation: Callable[[pytest.MonkeyPatch], None],
) -> None:
    placement = buffer_overwritten_before_its_bundle_leaves(counting)
    expected, _ = train(counting, on_one_device(counting))
    mutation(monkeypatch)
    assert train(counting, placement)[0] != expected


def test_a_bundle_is_one_wire_that_is_released_once_it_was_handed_over(
    counting: CapturedStep,
) -> None:
    placement = buffer_overwritten_before_its_bundle_leaves(counting)
    number = len(placement.messages) - 1

    def code(device: str) -> str:
        transport = MailboxTransport(Mailbox())
        return program_of(with_own_values(counting), placement, device, transport).module.code

    packed, last = f"pack_{number}_{BUFFER}", f"pack_{number}_addmm"
    sender = code("s1/0")
    assert re.search(rf"{last} = self.{last}\(\w+, {packed}\);.* {packed} = None", sender)
    assert re.search(rf"self.send_{number}\({last}\);  {last} = ", sender)
    assert "complete_" not in sender.split("self.send_")[0]
    assert code("s2/0").count(f"self.receive_{number}(") == 1
    assert f"self.unpack_addmm(receive_{number});  receive_{number} = None" in code("s2/0")


def test_what_goes_to_two_ranks_is_copied_once() -> None:
    path = "placewire.examples.models.mlp:training_step"
    captured = capture(path, 6, OptimizerChoice(), 0, accumulate=3)
    work = captured.operators
    devices = {
        name: f"s{max(part, 0) + 1}/0"
        for name, part in zip(work.ids, work.micro_batch.tolist(), strict=True)
    }
    placement = placement_of(work, cluster_of(3), devices)
    weights = [name for name in work.ids if name.startswith("parameter_")]
    for there in ("s2/0", "s3/0"):
        joined = [m for m in placement.messages if m.producer in weights and m.destination == there]
        *others, last = joined
        assert len(others) > 3
        more = {
            "bundled": tuple(sent for one in others for sent in one.tensors),
            "bytes": sum(one.bytes for one in joined),
        }
        messages = [m for m in placement.messages if m not in joined]
        messages.append(last.model_copy(update=more))
        placement = placement.model_copy(update={"messages": tuple(messages)})
    program = program_of(with_own_values(captured), placement, "s1/0", MailboxTransport(Mailbox()))
    names = [name for name, _ in program.module.named_modules()]
    assert sum(name.startswith("pack_") for name in names) == len(joined)
    assert program.module.code.count(f"_{last.producer})") >= 2, "one wire for two sends"
    expected_losses, expected = train(captured, on_one_device(captured))
    losses, values = train(captured, placement)
    assert losses == expected_losses
    assert all(torch.equal(values[name], value) for name, value in expected.items())


def test_wrong_bytes_of_one_tensor_are_refused(counting: CapturedStep) -> None:
    placement = buffer_overwritten_before_its_bundle_leaves(counting)
    *others, message = placement.messages
    for wrong, match in (
        (Sent(BUFFER, 0, 12), "says 12 bytes for output 0"),
        (Sent(BUFFER, 1, 16), "says 16 bytes for output 1"),
    ):
        changed = message.model_copy(update={"bundled": (wrong,)})
        messages = (*others, changed)
        with pytest.raises(JobError, match=match):
            program_of(
                with_own_values(counting), placement.model_copy(update={"messages": messages}),
                "s1/0", MailboxTransport(Mailbox()),
            )  # fmt: skip


def test_tensors_lie_anywhere_in_a_wire() -> None:
    """A float after three bytes is at no multiple of its size; what is unpacked is where torch
    would have allocated it."""
    values = {
        "mask": torch.tensor([True, False, True]),
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        "complex": torch.randn(2, 2, dtype=torch.complex64).conj(),
        "spread": torch.arange(2.0, dtype=torch.float64).expand(3, 2),
        "none": torch.empty(0, 4),
        "last": torch.arange(40, dtype=torch.int16)[::3],
    }
    layouts = {name: Layout.of(value) for name, value in values.items()}
    sizes = [3, 24, 32, 16, 0, 28]
    assert [layout.wire_bytes for layout in layouts.values()] == sizes
    *others, last = (Sent(name, 0, layout.wire_bytes) for name, layout in layouts.items())
    message = RankMessage(
        index=0, producer=last.producer, output=0, bytes=sum(sizes), peer=1, peer_device="s2/0",
        upward=True, parts=(), rail_names=(), bundled=tuple(others),
    )  # fmt: skip
    starts = {sent.producer: sum(sizes[:at]) for at, sent in enumerate(message.tensors)}
    wire = None
    for name in ("turned", "last", "mask", "none", "complex", "spread"):
        wire = Pack(message, starts[name], layouts[name])(values[name], wire)
    assert wire is not None and wire.numel() == message.bytes
    for name, value in values.items():
        found = Unpack(starts[name], layouts[name])(wire)
        assert torch.equal(found, value) and Layout.of(found) == layouts[name]
        assert found.data_ptr() % 64 == 0


def graph() -> OperatorGraph:
    rows = [OperatorRow(id=i, type="x", seconds={"cpu": 0.01}) for i in "pqrs"]
    tensors = [
        TensorRow("p", ("s",), 100), TensorRow("p", ("r",), 30), TensorRow("q", ("s",), 1000)
    ]  # fmt: skip
    return build_graph(rows, tensors)


def on_two() -> Placement:
    devices = {"p": "s1/0", "q": "s1/0", "r": "s2/0", "s": "s2/0"}
    return placement_of(graph(), cluster_of(2), devices)


def test_both_ends_know_all_tensors() -> None:
    chosen = bundled(on_two(), ("p", "q"))
    ((sent,),) = [v for k, v in rank_messages(chosen, "s1/0", ("a",)).sends.items() if k == "q"]
    (received,) = [m for m in rank_messages(chosen, "s2/0", ("a",)).receives if m.bundled]
    for message in (sent, received):
        assert message.tensors == (Sent("p", 0, 100), Sent("q", 0, 1000))
        assert message.parts[-1].stop == message.bytes == 1100


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"bundled": (Sent("r", 0, 100),)},
            "bundles the tensor of 'r', which does not run on s1/0",
        ),
        (
            {"bundled": (Sent("q", 1, 100),)},
            "bundles the tensor of 'q', which does not run on s1/0",
        ),
        ({"bundled": (Sent("nobody", 0, 100),)}, "bundles the tensor of 'nobody'"),
        ({"bundled": (Sent("p", 0, 1101),)}, "says 1100 bytes, of which its bundled tensors' 1101"),
        ({"bundled": (Sent("p", 0, -1),)}, "bundled tensors' -1 bytes are no part"),
    ],
)
@pytest.mark.parametrize("device", ["s1/0", "s2/0"])
def test_wrong_bundles_are_refused(change: dict[str, Any], match: str, device: str) -> None:
    with pytest.raises(JobError, match=match) as raised:
        rank_messages(bundled(on_two(), ("p", "q"), **change), device, ("a",))
    assert "optimizer check" in raised.value.remedy


def test_a_bundle_that_leaves_before_it_is_full_is_refused() -> None:
    chosen = bundled(on_two(), ("p", "q"))
    order = {**chosen.order, "s1/0": ("q", "p")}
    with pytest.raises(JobError, match="'p', which does not run on s1/0 before 'q'"):
        rank_messages(chosen.model_copy(update={"order": order}), "s1/0", ("a",))


def test_a_replay_sends_after_the_last_and_receives_before_the_first() -> None:
    step, chosen = graph(), bundled(on_two(), ("p", "q"))
    both = Sent("p", 1, 30), Sent("p", 0, 100)
    all_in_one = chosen.messages[-1].model_copy(update={"bundled": both, "bytes": 1130})
    chosen = chosen.model_copy(update={"messages": (all_in_one,)})

    def kinds(device: str) -> list[str]:
        messages = rank_messages(chosen, device, ("a",))
        actions = replay_actions(step, chosen, device, messages, 1.0)
        return [
            "send" if isinstance(one, SendAction)
            else "receive" if isinstance(one, ReceiveAction)
            else "".join(name for name, _ in one.operators)
            for one in actions
        ]  # fmt: skip

    assert kinds("s1/0") == ["pq", "send"]
    assert kinds("s2/0") == ["receive", "rs"]
    unneeded = all_in_one.model_copy(update={"bundled": (Sent("p", 2, 0), *both)})
    chosen = chosen.model_copy(update={"messages": (unneeded,)})
    with pytest.raises(JobError, match="message of 'p' comes to s2/0, where nothing needs it"):
        kinds("s2/0")
