"""Makes a synthetic training graph of exactly so many operators: a stack of Transformer layers with
backward pass and updates (benchmarks/tape.py)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.tape import Tape, Value
from placewire.optimizer.graph.operator_graph import OperatorGraph

HEADS, WORDS = 4, 4096
# How much wider a feed-forward network is than its layer; the seed chooses one for each layer.
WIDENINGS = (2, 3, 4)
# One layer in so many also adds the result of an earlier one (a long skip connection).
LONG_SKIP_EVERY = 6


@dataclass(frozen=True)
class Sizes:
    width: int
    batch: int
    length: int

    @property
    def tokens(self) -> int:
        return self.batch * self.length


def layered_training_graph(
    operators: int, seed: int, width: int = 256, batch: int = 4, length: int = 128
) -> OperatorGraph:
    """Makes as many whole layers as fit; the operators left over are norms of weight gradients, as
    monitoring reads them. The graph has FLOPs, traffic and bytes, but no seconds.

    50,000 operators of the default sizes hold 4 GiB of weights and optimizer state, and fit on one
    device of 16 GiB. Raises ValueError where not even two layers fit, or where the four heads do
    not divide the width.
    """
    if width % HEADS:
        raise ValueError(f"width is {width}; it must divide by {HEADS}")
    sizes = Sizes(width, batch, length)
    one, tape = (_trained(layers, seed, sizes) for layers in (1, 2))
    least, layer = tape.operator_count, tape.operator_count - one.operator_count
    if operators < least:
        raise ValueError(f"operators is {operators}; two layers have {least}")
    layers = 2 + (operators - least) // layer
    tape = _trained(layers, seed, sizes)
    while tape.operator_count > operators:  # long skip connections add some operators
        layers -= 1 + (tape.operator_count - operators - 1) // (layer + 2)
        tape = _trained(layers, seed, sizes)
    watched = [tape.gradients[parameter.operator] for parameter in tape.parameters]
    for k in range(operators - tape.operator_count):
        gradient = watched[k % len(watched)]
        name = f"{gradient.operator}_norm_{k // len(watched)}"
        tape.operator(name, "aten.linalg_vector_norm.default", [gradient], 1, gradient.elements)
    return tape.graph(f"layered, {operators} operators, seed {seed}")


def _trained(layers: int, seed: int, sizes: Sizes) -> Tape:
    """A training step of so many layers and a loss."""
    choice, tape = random.Random(seed), Tape()
    tokens = tape.input("input_0", sizes.tokens)
    results = [tape.embedding("words", tokens, WORDS, sizes.width)]
    for k in range(layers):
        x = results[-1]
        if k % LONG_SKIP_EVERY == LONG_SKIP_EVERY - 1:
            x = tape.add(f"layer{k}_skip", x, results[choice.randrange(1, k)])
        results.append(_layer(tape, f"layer{k}", x, choice.choice(WIDENINGS), sizes))
    last = tape.norm("last_norm", results[-1], sizes.width)
    loss = tape.operator("loss", "aten.mse_loss.default", [last], 1, 3 * last.elements)
    kind = "aten.mse_loss_backward.default"
    tape.arrives(last, tape.operator("loss_dx", kind, [loss, last], last.elements, last.elements))
    tape.backward()
    tape.updates()
    return tape


def _layer(tape: Tape, name: str, x: Value, widening: int, sizes: Sizes) -> Value:
    """A layer as in examples/models/gpt2.py, with attention decomposed and without dropout."""
    tokens, width = sizes.tokens, sizes.width
    normal = tape.norm(f"{name}_attention_norm", x, width)
    query, key, value = (
        tape.linear(f"{name}_{part}", normal, tokens, width) for part in ("query", "key", "value")
    )
    scored = sizes.batch * HEADS * sizes.length**2
    flops = 2 * tokens * sizes.length * width
    scores = tape.product(f"{name}_scores", query, key, scored, flops)
    weights = tape.elementwise(f"{name}_softmax", "_softmax", scores, 5)
    mixed = tape.product(f"{name}_mixed", weights, value, tokens * width, flops)
    x = tape.add(f"{name}_attended", x, tape.linear(f"{name}_output", mixed, tokens, width))
    normal = tape.norm(f"{name}_feed_forward_norm", x, width)
    hidden = tape.linear(f"{name}_up", normal, tokens, widening * width)
    hidden = tape.elementwise(f"{name}_gelu", "gelu", hidden, 10)
    return tape.add(f"{name}_fed", x, tape.linear(f"{name}_down", hidden, tokens, width))
