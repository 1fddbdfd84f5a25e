"""The example models: does the captured step train as eager PyTorch does, to the last bit?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import fx, nn

from benchmarks.job.eager import whole
from placewire.examples.models import (
    alphafold2,
    bert,
    deep_transformer,
    fnet,
    gnmt,
    gpt2,
    gpt3,
    holography,
    inception,
    mixture,
    resnet50,
    swin,
    transformer,
    vgg16,
)
from placewire.optimizer.capture.captured_step import CapturedStep
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.profile.straight import StraightStep

STEPS = 3
QUICK = ("mlp", "fnet", "gpt2", "two_towers")
OTHERS = (
    "alexnet", "vgg", "resnet50", "inception_v3", "bert", "deep", "gnmt", "transformer",
    "gpt3_shaped", "holography", "swin", "alphafold2",
)  # fmt: skip
EVERY = (
    *QUICK,
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("vgg_batch_norm", "gpt2_fused", "mixture")
    ),
    *(pytest.param(name, marks=pytest.mark.thorough) for name in OTHERS),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def small(name: str) -> CapturedStep:
    return capture(f"tests.models.small:{name}", 4, OptimizerChoice("adamw", 1e-3), 3)


@pytest.mark.parametrize("name", EVERY)
def test_captured_steps_train_as_eager_ones_to_the_last_bit(name: str) -> None:
    # Captured anew, because training changes the values.
    captured = capture(f"tests.models.small:{name}", 4, OptimizerChoice("adamw", 1e-3), 3)
    step = load_training_step(f"tests.models.small:{name}", 4, 3)
    model = whole(step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    program = StraightStep(captured)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = model(*step.batches(number))
        loss.backward()
        optimizer.step()
        assert program.run(program.load(number)).item() == loss.item(), f"step {number}"
    expected = {
        key.replace(".", "_"): value.detach()
        for key, value in (*model.named_parameters(), *model.named_buffers())
    }
    assert len(captured.code.parameters) == len(list(model.parameters()))
    for identifier, value in captured.values.items():
        assert torch.equal(value, expected[identifier.split("_", 1)[1]]), identifier


def test_the_tied_output_layer_is_the_word_embedding() -> None:
    captured = small("gpt2")
    ids = captured.operators.ids
    tied = [i for i in ids if "word_weight" in i or "head_weight" in i]
    assert [i.partition("_")[0] for i in tied] == ["parameter", "update"]
    gradient = captured.nodes[tied[1]].args[1]
    assert isinstance(gradient, fx.Node) and gradient.target is torch.ops.aten.add.Tensor
    assert "aten.embedding_dense_backward.default" in {
        str(operand.target) for operand in gradient.all_input_nodes
    }


@pytest.mark.slow
def test_attention_is_one_operator_and_its_backward_where_nothing_is_dropped() -> None:
    fused, decomposed = small("gpt2_fused").operators.types, small("gpt2").operators.types
    attention = [kind for kind in fused if "attention" in kind]
    assert len(attention) == 2 * gpt2.SMALL.layers  # type: ignore[attr-defined]
    assert not [kind for kind in decomposed if "attention" in kind]
    assert decomposed.count("aten._safe_softmax.default") == gpt2.SMALL.layers  # type: ignore[attr-defined]


@pytest.mark.slow
def test_batch_norm_writes_its_buffers() -> None:
    copies = [i for i in small("vgg_batch_norm").code.writers if i.startswith("copy_")]
    assert len(copies) == 3 * 13


@pytest.mark.slow
def test_the_deep_transformer_has_more_than_twelve_thousand_operators() -> None:
    """Every layer adds the same number, so that 2 and 6 layers tell the number for 80."""
    two, six = small("gpt2").operators.operator_count, small("deep").operators.operator_count
    layer, rest = divmod(six - two, deep_transformer.SMALL.layers - gpt2.SMALL.layers)  # type: ignore[attr-defined]
    assert rest == 0
    assert two + layer * (deep_transformer.DEEP.layers - gpt2.SMALL.layers) > 12_000  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (lambda: vgg16.Vgg16(batch_norm=False, dropout=0.5, shrink=1), 33_638_218),
        (lambda: vgg16.Vgg16(batch_norm=True, dropout=0.5, shrink=1), 33_646_666),
        (lambda: resnet50.ResNet(resnet50.Sizes()), 25_557_032),
        (lambda: inception.Inception(inception.Sizes()), 27_161_264),
        (lambda: inception.Inception(inception.Sizes(auxiliary=())), 23_834_568),
        (lambda: bert.Bert(bert.BASE), 109_188_098),
        (lambda: fnet.FNet(fnet.BASE), 81_974_018),
        (lambda: gpt2.Gpt2(gpt2.BASE), 123_751_680),
        (lambda: gpt2.Gpt2(deep_transformer.DEEP), 65_311_232),
        (lambda: gpt2.Gpt2(gpt3.M330), 355_871_744),
        (lambda: gpt2.Gpt2(gpt3.B13), 12_853_386_240),
        (lambda: transformer.Transformer(transformer.LARGE), 1_475_870_720),
        (lambda: gnmt.Gnmt(gnmt.Sizes()), 590_982_400),
        (lambda: holography.Holography(holography.Sizes()), 148_710),
        (lambda: swin.Swin(swin.TINY), 28_288_354),
        (lambda: swin.Swin(swin.Sizes()), 1_792_112_840),
        (lambda: alphafold2.AlphaFold2(alphafold2.M87), 87_902_423),
        (lambda: alphafold2.AlphaFold2(alphafold2.M930), 911_830_583),
        (lambda: alphafold2.AlphaFold2(alphafold2.M2400), 2_363_340_983),
    ],
    ids=[
        "vgg", "vgg with batch norm", "resnet", "inception", "inception, one loss", "bert", "fnet",
        "gpt2", "deep", "gpt3", "gpt3 of 13 thousand million", "transformer", "gnmt", "holography",
        "swin-t", "swin", "alphafold2", "alphafold2 of 930 million",
        "alphafold2 of 2.4 thousand million",
    ],
)  # fmt: skip
def test_sizes_are_the_published_ones(model: Callable[[], nn.Module], parameters: int) -> None:
    """Built without memory for its values. GPT-2: 124,439,808 with its 1,024 positions."""
    with torch.device("meta"):
        assert sum(value.numel() for value in model().parameters()) == parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_there_is_something_to_learn(name: str) -> None:
    """The loss falls in twenty steps over fresh batches."""
    step = load_training_step(f"tests.models.small:{name}", 32, 0)
    model = whole(step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for number in range(20):
        optimizer.zero_grad()
        loss = model(*step.batches(number))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.96 * sum(losses[:5]), losses


def test_experts_take_no_more_than_they_have_room_for_and_the_first_first() -> None:
    layer = mixture.Mixture(mixture.SMALL)
    sizes = mixture.SMALL
    with torch.no_grad():
        layer.router.weight.zero_()  # all experts are as likely: topk takes the same for each token
        layer.router.weight[1] = 1.0
    x = torch.rand(2, sizes.length, sizes.width)
    weights, taken = layer._routes(torch.softmax(layer.router(x), dim=-1))
    assert taken.shape == weights.shape == (2, sizes.length, sizes.experts, sizes.capacity)
    assert set(taken.unique().tolist()) == {0.0, 1.0}
    assert taken.sum(dim=(1, 3)).max() == sizes.capacity < sizes.length
    served = taken[0, :, 1].sum(dim=1)
    assert served.tolist() == [1.0] * sizes.capacity + [0.0] * (sizes.length - sizes.capacity)
    assert torch.all(weights.sum(dim=(2, 3)) <= 1 + 1e-6)


@pytest.mark.parametrize(
    "name", ["vgg", "bert", "gpt2", "mixture", "two_towers", "gnmt", "holography"]
)
def test_batches_depend_on_seed_and_step_alone(name: str) -> None:
    step, again = (load_training_step(f"tests.models.small:{name}", 4, 3) for _ in range(2))
    other = load_training_step(f"tests.models.small:{name}", 4, 4)
    first = step.batches(1)
    torch.manual_seed(99)
    assert all(torch.equal(a, b) for a, b in zip(first, again.batches(1), strict=True))
    assert not torch.equal(first[0], step.batches(2)[0])
    assert not torch.equal(first[0], other.batches(1)[0])
