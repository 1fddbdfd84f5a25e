"""Makes torch.cond one operator, which chooses its side whenever it runs.

The joint graph holds a conditional of the forward pass and one of the backward pass, each with two
graphs of its own. The conditional of the backward pass computes its side's forward part again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx


class Conditional:
    """Takes the predicate and the operands of both sides, and returns the tuple of the chosen side.

    A parameter of the other side gets a gradient of zeros, as with torch.cond.
    """

    # The name in generated code.
    __name__ = __qualname__ = "conditional"

    def __init__(self, on_true: fx.GraphModule, on_false: fx.GraphModule) -> None:
        self.sides = (on_true, on_false)

    def __call__(self, predicate: torch.Tensor, *operands: Any) -> tuple[Any, ...]:
        return tuple(self.sides[0 if predicate else 1](*operands))

    def nodes(self) -> Iterator[fx.Node]:
        """Yields the nodes of both sides, and of conditionals in them."""
        for side in self.sides:
            for node in side.graph.nodes:
                yield node
                if isinstance(node.target, Conditional):
                    yield from node.target.nodes()

    @property
    def most_bytes_on_the_way(self) -> int:
        """The most bytes that a side allocates beside its results; not all exist at once."""
        return max(_allocated_bytes(side.graph) for side in self.sides)

    @property
    def code(self) -> str:
        """The generated code of both sides."""
        return "\n".join(str(side.code) for side in self.sides)


def _allocated_bytes(graph: fx.Graph) -> int:
    given, sizes = set(), {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            sizes[storage._cdata] = int(storage.nbytes())
            if node.op == "placeholder" or graph.output_node() in node.users:
                given.add(storage._cdata)
    return sum(size for storage, size in sizes.items() if storage not in given)


def with_conditionals(module: fx.GraphModule) -> None:
    """Replaces each torch.cond in the module's graph with a call of a Conditional."""
    graph = module.graph
    nodes = graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)
    for node in nodes:
        arguments: Any = node.args
        predicate, on_true, on_false, operands = arguments
        sides = [getattr(module, str(side.target)) for side in (on_true, on_false)]
        for side in sides:
            with_conditionals(side)
        with graph.inserting_before(node):
            call = graph.call_function(Conditional(*sides), (predicate, *operands))
        call.meta = dict(node.meta)
        call.meta["val"] = tuple(node.meta["val"])
        node.replace_all_uses_with(call)
        graph.erase_node(node)
        for side_node in (on_true, on_false):
            if not side_node.users:
                graph.erase_node(side_node)
    if nodes:
        module.recompile()
