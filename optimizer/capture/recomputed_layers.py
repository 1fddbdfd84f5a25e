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
    parts = _parts(forward, _layers(forward))
    if len(parts) < 2:
        raise CaptureError(
            f"{where}: there are no layers to compute again, because the model calls no list of "
            "modules (torch.nn.Sequential or ModuleList) one after the other; make one, wrap what "
            "is to be computed again in torch.utils.checkpoint, or leave out job.recompute"
        )
    free = [part for part in parts if all(checkpoint_of(node) is None for node in part)]
    if not free:
        raise CaptureError(
            f"{where}: the model has torch.utils.checkpoint in all of its layers, which are "
            "computed again for it: take it out, or leave out job.recompute"
        )
    for number, part in enumerate(free[:: 2 if recompute == "half" else 1]):
        for node in part:
            note_checkpoint(node, f"layer {number}")


def _layers(forward: Nodes) -> list[Nodes]:
    """In the order of their first nodes."""
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
    place = {node: k for k, node in enumerate(forward)}
    return sorted(found, key=lambda layer: place[layer[0]])


def _elements(nodes: Nodes, depth: int) -> list[Nodes]:
    """The elements of lists that lie inside so many other elements. One that is called several
    times is several; torch's stack has a key for each call."""
    found = dict[str, list[fx.Node]]()
    for node in nodes:
        stack = node.meta.get("nn_module_stack") or {}
        calls = [call for call, (path, _) in stack.items() if _ELEMENT.search(path)]
        if len(calls) > depth:
            found.setdefault(calls[depth], []).append(node)
    return list(found.values())


def _parts(forward: Nodes, layers: Sequence[Nodes]) -> list[Nodes]:
    """Joins layers in a row, so many that the sum of what lies between parts and of what one part
    holds is least."""
    if not layers:
        return []
    made, place = _made_bytes(forward), {node: k for k, node in enumerate(forward)}
    inside = sum(made[node] for layer in layers for node in layer)
    between = 0
    for layer in layers:
        own = set(layer)
        read = [node for node in layer if any(u in place and u not in own for u in node.users)]
        handed_on: dict[Hashable, int] = {storage_of(one) or one: _bytes(one) for one in read}
        between += sum(handed_on.values())
    each = max(1, round(math.sqrt(len(layers) * between / max(inside, 1))))
    return [list(itertools.chain(*layers[k : k + each])) for k in range(0, len(layers), each)]


def _made_bytes(nodes: Nodes) -> dict[fx.Node, int]:
    """A view takes none, of a weight either."""
    known = {storage_of(node) for node in nodes[0].graph.find_nodes(op="placeholder")}
    made = dict[fx.Node, int]()
    for node in nodes:
        place = storage_of(node)
        made[node] = 0 if place in known and place is not None else _bytes(node)
        known.add(place)
    return made


def _bytes(node: fx.Node) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(node.meta.get("val")))
