"""Lowering: do several ranks train as one rank does, bit for bit?"""

from __future__ import annotations

import pytest
import torch

from placewire.job.errors import JobError
from placewire.job.placed.lower import RankProgram
from placewire.job.transport.transport import Alone
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.placement import Placement
from placewire.optimizer.profile.straight import StraightStep
from tests.job.lazy_network import Mailbox, MailboxTransport
from tests.job.lazy_training import STEPS, on_one_device, program_of, train, with_own_values
from tests.job.node_by_node import train_node_by_node
from tests.placements import cluster_of, placement_of, random_devices


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def hard() -> CapturedStep:
    return capture("tests.models.hard:training_step", 3, OptimizerChoice("adamw", 1e-2), 3)


@pytest.fixture(scope="module")
def mlp() -> CapturedStep:
    choice = OptimizerChoice("sgd", 0.1, {"momentum": 0.9})
    return capture("placewire.examples.models.mlp:training_step", 8, choice, 1)


@pytest.mark.parametrize("name", ["hard", "mlp"])
@pytest.mark.parametrize("seed", range(6))
def test_any_placement_and_order_train_bit_identically(
    name: str, seed: int, request: pytest.FixtureRequest
) -> None:
    captured: CapturedStep = request.getfixturevalue(name)
    graph = captured.operators
    cluster = cluster_of(2 + seed % 3)
    devices = random_devices(graph, cluster, seed)
    placement = placement_of(graph, cluster, devices, order_seed=seed if seed % 2 else None)
    assert placement.messages
    assert trains_bit_identically(captured, placement)


@pytest.mark.parametrize("name", ["hard", "mlp"])
@pytest.mark.parametrize("seed", range(6))
def test_tensors_that_travel_together_train_bit_identically(
    name: str, seed: int, request: pytest.FixtureRequest
) -> None:
    captured: CapturedStep = request.getfixturevalue(name)
    graph, cluster = captured.operators, cluster_of(2 + seed % 2)
    devices = random_devices(graph, cluster, seed)
    placement = placement_of(
        graph, cluster, devices, order_seed=seed if seed % 2 else None, bundle_seed=seed
    )
    assert sum(1 for m in placement.messages if m.bundled) > 3
    assert trains_bit_identically(captured, placement)


def trains_bit_identically(captured: CapturedStep, placement: Placement) -> bool:
    expected_losses, expected = train(captured, on_one_device(captured))
    losses, values = train(captured, placement)
    assert losses[-1] < losses[0]
    return losses == expected_losses and all(torch.equal(values[k], v) for k, v in expected.items())


@pytest.mark.parametrize("name", ["vgg16", "fnet", "gpt2"])
def test_example_models_train_bit_identically_on_three_servers(name: str) -> None:
    """With batch norm's buffers, dropout, complex tensors, tied weights."""
    path, choice = (
        f"placewire.examples.models.{name}:training_step_small",
        OptimizerChoice("adamw", 1e-3),
    )
    captured = capture(path, 3, choice, 3)
    expected_losses, expected = train(captured, on_one_device(captured))
    cluster = cluster_of(3)
    devices = random_devices(captured.operators, cluster, 5)
    placement = placement_of(captured.operators, cluster, devices, order_seed=5)
    losses, values = train(captured, placement)
    assert losses == expected_losses
    assert all(torch.equal(values[k], v) for k, v in expected.items())


def test_one_rank_trains_as_the_profile_and_as_node_by_node(hard: CapturedStep) -> None:
    own, by_hand = with_own_values(hard), with_own_values(hard)
    alone = StraightStep(own)
    for step in range(STEPS):
        alone.run(alone.load(step))
    train_node_by_node(by_hand, STEPS)
    _, values = train(hard, on_one_device(hard))
    assert all(torch.equal(values[k], v) for k, v in own.values.items())
    assert all(torch.equal(values[k], v) for k, v in by_hand.values.items())


def test_dropout_differs_between_steps(hard: CapturedStep) -> None:
    program = program_of(with_own_values(hard), on_one_device(hard), "s1/0", Alone())
    frozen = fixed_parameters(program)
    losses = set()
    for step in (0, 1, 0):
        program.tell(step)
        losses.add(float(frozen(*hard.batches(0))["loss"]))
    assert len(losses) == 2


def fixed_parameters(program: RankProgram) -> torch.nn.Module:
    """Returns the program without its updates and copies."""
    for node in list(program.module.graph.nodes):
        is_update = node.op == "call_module" and str(node.target).startswith("update_")
        if is_update or node.target is torch.ops.aten.copy_.default:
            program.module.graph.erase_node(node)
    program.module.recompile()
    return program.module


def test_a_sent_parameter_is_complete_before_its_update(mlp: CapturedStep) -> None:
    """The first layer's weight is read on another rank only, so that nothing else delays its
    update."""
    graph = mlp.operators
    cluster = cluster_of(2)
    devices = dict.fromkeys(graph.ids, "s2/0")
    group = graph.colocation[graph.index_of["parameter_model_left_0_weight"]]
    for i, identifier in enumerate(graph.ids):
        if graph.colocation[i] == group:
            devices[identifier] = "s1/0"
    placement = placement_of(graph, cluster, devices)
    program = program_of(with_own_values(mlp), placement, "s1/0", MailboxTransport(Mailbox()))
    calls = [n.name for n in program.module.graph.nodes if n.op == "call_module"]
    sent = next(n for n in calls if n.startswith("send_"))
    completed = next(n for n in calls if n.startswith("complete_"))
    update = calls.index("update_model_left_0_weight")
    assert calls.index(sent) < calls.index(completed) < update


def test_a_view_of_a_parameter_is_complete_before_its_update(mlp: CapturedStep) -> None:
    graph = mlp.operators
    cluster = cluster_of(2)
    devices = dict.fromkeys(graph.ids, "s1/0")
    view = next(node for node in mlp.analysis.nodes if node.target is torch.ops.aten.t.default)
    assert view.all_input_nodes[0].name == "parameter_model_left_0_weight"
    for user in view.users:
        devices[user.name] = "s2/0"
    placement = placement_of(graph, cluster, devices)
    number = next(i for i, m in enumerate(placement.messages) if m.producer == view.name)
    program = program_of(with_own_values(mlp), placement, "s1/0", MailboxTransport(Mailbox()))
    calls = [n.name for n in program.module.graph.nodes if n.op == "call_module"]
    update = calls.index("update_model_left_0_weight")
    assert calls.index(f"send_{number}") < calls.index(f"complete_{number}") < update


def test_values_are_released_after_their_last_use(mlp: CapturedStep) -> None:
    program = program_of(with_own_values(mlp), on_one_device(mlp), "s1/0", Alone())
    assert "addmm = None" in program.module.code


def split_in_two(captured: CapturedStep) -> Placement:
    graph, cluster = captured.operators, cluster_of(2)
    return placement_of(graph, cluster, random_devices(graph, cluster, 1))


def test_another_structure_is_refused(mlp: CapturedStep, hard: CapturedStep) -> None:
    placement = split_in_two(mlp)
    with pytest.raises(JobError, match="capture has structure") as raised:
        program_of(hard, placement, "s1/0", Alone())
    assert "same on every server" in raised.value.remedy


def test_a_missing_message_is_refused(mlp: CapturedStep) -> None:
    placement = split_in_two(mlp)
    arriving = next(m for m in placement.messages if m.destination == "s1/0")
    rest = tuple(m for m in placement.messages if m != arriving)
    with pytest.raises(JobError, match=f"needs '{arriving.producer}', which no message"):
        program_of(mlp, placement.model_copy(update={"messages": rest}), "s1/0", Alone())


def test_wrong_message_sizes_are_refused(mlp: CapturedStep) -> None:
    placement = split_in_two(mlp)
    wrong = tuple(m.model_copy(update={"bytes": m.bytes + 4}) for m in placement.messages)
    with pytest.raises(JobError, match=r"says \d+ bytes"):
        program_of(mlp, placement.model_copy(update={"messages": wrong}), "s1/0", Alone())


def test_a_wrong_order_is_refused(mlp: CapturedStep) -> None:
    placement = on_one_device(mlp)
    backwards = {"s1/0": tuple(reversed(placement.order["s1/0"]))}
    with pytest.raises(JobError, match="comes before its operand"):
        program_of(mlp, placement.model_copy(update={"order": backwards}), "s1/0", Alone())
