"""Finds the layers of a model, and notes those that are to be computed again as if the model had
wrapped them in torch.utils.checkpoint.

Layers are the elements of lists of modules (`layers.0`, `layers.1`, ...). Where they hold little
more than what they hand on, as single convolutions do, several in a row are computed again together
(Chen et al. 2016: the square root of their number, where all are alike).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Sequence

from torch import fx

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.nodes import storage_of, tensors_in
from placewire.optimizer.capture.recompute import backward_half, checkpoint_of, note_checkpoint
from placewire.optimizer.capture.variants import Recompute

# How the name of an element ends.
_ELEMENT = re.compile(r"(^|\.)\d+(@\d+)?$")
# An element of a list that makes a larger part of all that the forward half makes is no layer,
# where it has a list itself.
_LARGEST_PART = 0.5

Nodes = Sequence[fx.Node]


def note_layers(graph: fx.Graph, recompute: Recompute, backward: set[fx.Node], where: str) -> None:
    """Notes a checkpoint on the nodes of each layer, of every second one, or of none. Layers in
    which the model has checkpoints stay as they are. backward: the nodes that depend on the loss's
    own gradient. Raises CaptureError where there are no layers."""
    if recompute == "none":
        return
    behind = backward_half(graph, backward)
    forward = [node for node in graph.nodes if node.op == "call_function" and node not in behind]
    layers = _layers(forward)
    if len(layers) < 2:
        raise CaptureError(
            f"{where}: there are no layers to compute again, because the model calls no list of "
            "modules (torch.nn.Sequential or ModuleList) one after the other; make one, or wrap "
            "what is to be computed again in torch.utils.checkpoint, and leave out job.recompute"
        )
    parts = _parts(forward, _without_checkpoints(layers))
    if not parts:
        raise CaptureError(
            f"{where}: the model has torch.utils.checkpoint in all of its layers, which are "
            "computed again for it: take it out, or leave out job.recompute"
        )
    for number, part in enumerate(parts[:: 2 if recompute == "half" else 1]):
        for node in part:
            note_checkpoint(node, f"layer {number}")


def _layers(forward: Nodes) -> list[Nodes]:
    """The layers are in the order of their first nodes."""
    made = _made_bytes(forward)
    largest = _LARGEST_PART * sum(made.values())
    found, left = list[Nodes](), [(forward, 0)]
    while left:
        nodes, depth = left.pop()
        for element in _elements(nodes, depth):
            is_large = sum(made[node] for node in element) > largest
            if is_large and len(_elements(element, depth + 1)) > 1:
                left.append((element, depth + 1))
            else:
                found.append(element)
    position = {node: k for k, node in enumerate(forward)}
    return sorted(found, key=lambda layer: position[layer[0]])


def _elements(nodes: Nodes, depth: int) -> list[Nodes]:
    """The elements of lists at this depth: those of depth 1 lie in an element of depth 0. One that
    is called several times is several; torch's stack has a key for each call."""
    found = dict[str, list[fx.Node]]()
    for node in nodes:
        stack = node.meta.get("nn_module_stack") or {}
        calls = [call for call, (path, _) in stack.items() if _ELEMENT.search(path)]
        if len(calls) > depth:
            found.setdefault(calls[depth], []).append(node)
    return list(found.values())


def _without_checkpoints(layers: Sequence[Nodes]) -> list[list[Nodes]]:
    """The layers in which the model has no checkpoint; those in a row are together."""
    rows = itertools.groupby(
        layers, key=lambda layer: any(checkpoint_of(node) is not None for node in layer)
    )
    return [list(row) for has_checkpoint, row in rows if not has_checkpoint]


def _parts(forward: Nodes, rows: Sequence[Sequence[Nodes]]) -> list[Nodes]:
    """Joins layers in a row, so many that the sum of what lies between parts and of what one part
    holds is least, but at most half of all layers."""
    made, ahead, layers = _made_bytes(forward), set(forward), list(itertools.chain(*rows))
    inside = between = 0
    for layer in layers:
        own = set(layer)
        its = {storage_of(node) or node for node in layer if made[node]}
        read = [node for node in layer if any(u in ahead and u not in own for u in node.users)]
        handed_on: dict[Hashable, int] = {storage_of(one) or one: _bytes(one) for one in read}
        between += sum(size for storage, size in handed_on.items() if storage in its)
        inside += sum(made[node] for node in layer)
    least = round(math.sqrt(len(layers) * between / max(inside, 1)))
    each = max(1, min(least, len(layers) // 2))
    return [
        list(itertools.chain(*row[k : k + each])) for row in rows for k in range(0, len(row), each)
    ]


def _made_bytes(nodes: Nodes) -> dict[fx.Node, int]:
    """A view takes none, of a weight either."""
    known = {storage_of(node) for node in nodes[0].graph.find_nodes(op="placeholder")}
    made = dict[fx.Node, int]()
    for node in nodes:
        storage = storage_of(node)
        made[node] = 0 if storage in known and storage is not None else _bytes(node)
        known.add(storage)
    return made


def _bytes(node: fx.Node) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(node.meta.get("val")))
