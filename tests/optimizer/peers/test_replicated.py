"""DDP and FSDP: what they send, and how long they take, by hand and for captured models."""

from __future__ import annotations

import numpy as np
import pytest

from placewire.optimizer.bounds.load import share_of_load
from placewire.optimizer.peers.ddp import ddp_step
from placewire.optimizer.peers.fsdp import fsdp_step
from placewire.optimizer.peers.step_parts import StepParts, step_parts
from placewire.optimizer.problem import Problem
from tests.optimizer.cases import cluster
from tests.optimizer.peers.steps import (
    BACKWARD,
    FORWARD,
    LOSS,
    MODELS,
    SUM,
    UPDATE,
    WEIGHT,
    captured,
    chain,
    gpus,
    parameter_bytes,
)

PEERS = {"ddp": ddp_step, "fsdp": fsdp_step}
# Of one micro-batch of a chain of 4 layers.
MICRO_BATCH = (4 * (FORWARD + BACKWARD) + LOSS) / 1e3
# Each of 4 devices adds a quarter of 4 gradients three times.
SUMS = 4 * 3 / 4 * SUM / 1e3
# A copy moves two bytes of memory where an addition moves three. DDP copies 4 gradients, and FSDP
# 4 units that are gathered twice, and their gradients.
COPY = 2 / 3 * SUM / 1e3
COPIES = {"ddp": 4 * COPY, "fsdp": (2 * 4 + 4) * COPY}
AT_ONCE = 1e17


def rounding(parts: StepParts, devices: int) -> int:
    """A chunk has a whole number of bytes."""
    return 4 * devices * len(parts.gradients)


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_ddp_sends_its_gradients_twice_but_for_its_own_part(devices: int) -> None:
    step = ddp_step(step_parts(chain(devices)), cluster(devices))
    assert step.sent_bytes == pytest.approx(2 * (devices - 1) / devices * 4 * WEIGHT, rel=1e-9)


@pytest.mark.parametrize("devices", [2, 3, 4])
def test_fsdp_sends_blocks_twice_the_root_and_gradients_once(devices: int) -> None:
    """Three of four layers are numbered, and the fourth is in the root, which is gathered once."""
    step = fsdp_step(step_parts(chain(devices, blocks=3)), cluster(devices))
    all_bytes = (2 * 3 + 1) * WEIGHT + 4 * WEIGHT
    assert step.sent_bytes == pytest.approx((devices - 1) / devices * all_bytes, rel=1e-9)
    assert step.words == f"{devices} shards, 3 units"


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.thorough), 4])
@pytest.mark.parametrize("model", MODELS)
def test_models_send_what_their_parameters_say(model: str, devices: int) -> None:
    graph = captured(model, devices)
    parts, whole = step_parts(graph), parameter_bytes(graph)
    assert sum(gradient.bytes for gradient in parts.gradients) == whole
    around, off = (devices - 1) / devices, rounding(parts, devices)
    assert ddp_step(parts, gpus(devices)).sent_bytes == pytest.approx(2 * around * whole, abs=off)
    numbered = sum(
        max(int(graph.tensor_bytes[e]) for e in graph.output_tensors(i))
        for i, kind in enumerate(graph.types)
        if kind == "parameter" and any(word.isdigit() for word in graph.modules[i].split("."))
    )
    assert 0 < numbered <= whole
    sent = around * (2 * numbered + (whole - numbered) + whole)
    assert fsdp_step(parts, gpus(devices)).sent_bytes == pytest.approx(sent, abs=off)


def test_with_an_infinitely_fast_network_ddp_computes_sums_copies_and_updates_all() -> None:
    step = ddp_step(step_parts(chain(4)), cluster(4, (AT_ONCE,)))
    expected = MICRO_BATCH + SUMS + COPIES["ddp"] + 4 * UPDATE / 1e3
    assert step.step_seconds == pytest.approx(expected, rel=1e-6)
    assert step.limit == "compute, 100%"


def test_with_an_infinitely_fast_network_fsdp_updates_only_its_part() -> None:
    step = fsdp_step(step_parts(chain(4)), cluster(4, (AT_ONCE,)))
    expected = MICRO_BATCH + SUMS + COPIES["fsdp"] + UPDATE / 1e3
    assert step.step_seconds == pytest.approx(expected, rel=1e-6)


def test_fsdp_copies_as_many_bytes_as_fast_as_its_largest_gradient() -> None:
    """The addition of a small gradient takes as long as that of a large one, but as one kernel
    copies both, only bytes count."""
    graph = chain(4)
    small = [e for e in range(graph.tensor_count) if graph.tensor_bytes[e] == WEIGHT]
    of_layer = {"w0", "sum1.0", "sum2.0", "sum3.0", *(f"g0_m{m}" for m in range(4))}
    for e in small:
        if graph.ids[int(graph.tensor_producer[e])] in of_layer:
            graph.tensor_bytes[e] = WEIGHT // 100
    step = fsdp_step(step_parts(graph), cluster(4, (AT_ONCE,)))
    expected = MICRO_BATCH + SUMS + 3.01 / 4 * COPIES["fsdp"] + UPDATE / 1e3
    assert step.step_seconds == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("name", "calls"), [("ddp", 1), ("fsdp", 4 + 4 + 4)])
def test_each_collective_occupies_each_device_once_and_for_its_bytes(name: str, calls: int) -> None:
    """The gradients are one bucket of DDP's; FSDP gathers 4 units twice, and scatters each."""
    parts, each, per_byte = step_parts(chain(4)), 1e-4, 1e-9
    free = cluster(4, (AT_ONCE,))
    takes = {"message_seconds": each, "message_seconds_per_byte": per_byte}
    before = PEERS[name](parts, free)
    after = PEERS[name](parts, free.model_copy(update=takes))
    # What a device sends, it also takes.
    expected = calls * each + 2 * before.sent_bytes * per_byte
    assert after.step_seconds - before.step_seconds == pytest.approx(expected, rel=1e-6)
    assert after.sent_bytes == before.sent_bytes


@pytest.mark.parametrize("name", PEERS)
def test_a_slow_network_makes_a_step_as_long_as_its_bytes_say(name: str) -> None:
    rate = 8e5
    step = PEERS[name](step_parts(chain(4)), cluster(4, (rate,)))
    least = step.sent_bytes / (rate / 8)
    assert least > 2 and least <= step.step_seconds < 1.2 * least
    assert step.limit.startswith("network, ")


def test_ddp_sends_while_the_backward_half_runs() -> None:
    """Of gradients in two buckets, the first is sent beside the rest of the backward half."""
    graph = chain(2)
    graph.tensor_bytes[graph.tensor_bytes == WEIGHT] = big = 1 << 20
    rate = 8 * big / 0.005
    step = ddp_step(step_parts(graph), cluster(2, (rate,)))
    # Each of 2 devices adds a half of 4 gradients once.
    alone = MICRO_BATCH + 4 / 2 * SUM / 1e3 + COPIES["ddp"] + 4 * UPDATE / 1e3
    sent = 4 * big / (rate / 8)
    assert step.sent_bytes == 4 * big and sent == pytest.approx(0.02)
    # The bucket of layer 3 is ready three layers before the end of the backward half.
    assert step.step_seconds == pytest.approx(alone + 0.75 * sent, rel=1e-6)


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("model", MODELS)
def test_no_peer_beats_the_work_of_the_step_over_all_devices(model: str, name: str) -> None:
    graph = captured(model, 4)
    problem, parts = Problem(graph, gpus(4)), step_parts(graph)
    inside = (graph.micro_batch >= 0) | np.isin(np.array(graph.types), ["update"])
    inside[[i for gradient in parts.gradients for i in gradient.additions]] = True
    bound = float(share_of_load(problem.seconds)[inside].sum())
    for gigabits in (1.0, 1e6):
        assert PEERS[name](parts, gpus(4, gigabits)).step_seconds >= bound


def test_fsdp_holds_less_than_ddp() -> None:
    graph = captured("alexnet", 4)
    ddp, fsdp = (peer(step_parts(graph), gpus(4)) for peer in PEERS.values())
    assert fsdp.memory_bytes < ddp.memory_bytes
    assert ddp.memory_bytes > graph.weight_bytes[np.array(graph.types) == "parameter"].sum()


def test_clipping_takes_norms_on_every_device_and_sends_nothing_more() -> None:
    plain, clipped = (step_parts(captured("gpt2", 4, norm)) for norm in (None, 1.0))
    for peer in PEERS.values():
        one, other = peer(plain, gpus(4)), peer(clipped, gpus(4))
        assert other.sent_bytes == one.sent_bytes
        assert one.step_seconds < other.step_seconds < 1.3 * one.step_seconds


def test_a_tied_weight_has_one_gradient_and_is_gathered_with_the_root() -> None:
    graph = captured("gpt2", 4)
    parts = step_parts(graph)
    updates = [i for i, kind in enumerate(graph.types) if kind == "update"]
    assert len(parts.gradients) == len(updates)
    assert sorted(c for one in parts.gradients for c in one.readers) == sorted(updates)
    tied = max(parts.gradients, key=lambda one: one.bytes)
    assert [int(graph.micro_batch[i]) for i in tied.leaves] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", PEERS)
def test_a_slower_device_keeps_all_others_waiting(name: str) -> None:
    fast = cluster(4, (AT_ONCE,), types=["fast"] * 4)
    mixed = cluster(4, (AT_ONCE,), types=["fast", "fast", "cpu", "fast"])
    parts = step_parts(chain(4))
    quick, slow = (PEERS[name](parts, one).step_seconds for one in (fast, mixed))
    assert slow >= 3 * (quick - 4 * UPDATE / 3e3)


@pytest.mark.parametrize("name", PEERS)
def test_what_a_device_cannot_run_is_named(name: str) -> None:
    graph = chain(2)
    seconds = graph.seconds.copy()
    seconds[graph.index_of["f2_m1"], 1] = np.inf
    graph = graph.with_seconds({"cpu": seconds[:, 0], "fast": seconds[:, 1]})
    with pytest.raises(ValueError, match="s2/0 cannot run f2_m1"):
        PEERS[name](step_parts(graph), cluster(2, types=["cpu", "fast"]))
    # The other device runs the other micro-batch.
    assert PEERS[name](step_parts(graph), cluster(2, types=["fast", "cpu"])).step_seconds > 0


def test_of_several_devices_in_a_server_only_what_leaves_it_passes_its_nic() -> None:
    """Around a ring of 4 devices, 3 of 4 parts pass between two servers in either direction."""
    parts = step_parts(chain(4))
    servers = cluster(2, devices=2, intra=AT_ONCE)
    assert ddp_step(parts, servers).sent_bytes == pytest.approx(6 / 4 * 4 * WEIGHT)
    assert fsdp_step(parts, servers).sent_bytes == pytest.approx(3 / 4 * 3 * 4 * WEIGHT)


def test_round_a_ring_fsdp_sends_as_many_bytes_and_waits_for_every_hop() -> None:
    """Two gathers and a scatter, of three hops each, where nothing else is sent meanwhile."""
    parts, late = step_parts(chain(4, layers=1)), cluster(4, latency=0.01)
    straight, ring = fsdp_step(parts, late), fsdp_step(parts, late, only_rings=True)
    assert ring.sent_bytes == pytest.approx(straight.sent_bytes)
    assert ring.step_seconds == pytest.approx(straight.step_seconds + 3 * 2 * 0.01)


def test_the_hops_of_one_unit_are_set_up_while_another_is_sent() -> None:
    parts, late = step_parts(chain(4)), cluster(4, latency=0.01)
    straight, ring = fsdp_step(parts, late), fsdp_step(parts, late, only_rings=True)
    assert ring.step_seconds == pytest.approx(straight.step_seconds)


@pytest.mark.parametrize("name", PEERS)
def test_in_one_server_no_nic_sends(name: str) -> None:
    step = PEERS[name](step_parts(chain(4)), cluster(1, devices=4, intra=AT_ONCE))
    assert step.sent_bytes == 0
    work = MICRO_BATCH + SUMS + COPIES[name]
    assert MICRO_BATCH < step.step_seconds < work + 4.01 * UPDATE / 1e3


@pytest.mark.parametrize("name", PEERS)
def test_two_nics_take_half_as_long(name: str) -> None:
    parts, rate = step_parts(captured("alexnet", 4)), 1e8
    one, two = (PEERS[name](parts, gpus(4, rate / 1e9, rails=r)).step_seconds for r in (1, 2))
    assert 1.8 < one / two < 2.1


def test_a_block_that_runs_again_is_gathered_without_a_deadlock() -> None:
    """The first layer runs once more after the last, and so reads its weights after all others."""
    graph = chain(4, again=True)
    step = fsdp_step(step_parts(graph), cluster(4, (AT_ONCE,)))
    once = (FORWARD + BACKWARD) / 1e3
    expected = MICRO_BATCH + once + SUMS + COPIES["fsdp"] + UPDATE / 1e3
    assert step.step_seconds == pytest.approx(expected, rel=1e-6)


def test_ddp_holds_the_weights_the_gradients_and_one_micro_batch() -> None:
    """At the end of a forward half all results are there, and a gradient on its way to a bucket."""
    few, many = (ddp_step(step_parts(chain(2, k)), cluster(2)) for k in (4, 8))
    assert many.memory_bytes - few.memory_bytes == 4 * (WEIGHT + WEIGHT + 1000)


def test_fsdp_holds_parts_and_a_few_units() -> None:
    """More layers need their parts of weights and gradients, and results; no more whole units."""
    few, many = (fsdp_step(step_parts(chain(2, k)), cluster(2, (AT_ONCE,))) for k in (6, 12))
    assert many.memory_bytes - few.memory_bytes == 6 * (WEIGHT // 2 + WEIGHT // 2 + 1000)
    units = few.memory_bytes - 6 * (WEIGHT + 1000)
    assert 2 * WEIGHT < units < 6 * WEIGHT
