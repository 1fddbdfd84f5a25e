"""Makes the joint graph placeable.

In the result every node is one operator: parameters, buffers and inputs are placeholders with
readable names, each trainable parameter has one `update` node, each written buffer one `copy_`
node, and constants are attributes that every rank keeps for itself. Large weights may be cut into
shards, each of which is a parameter. Only updates and copies write in place. With several
micro-batches the graph has as many copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.micro_batches import unrolled
from placewire.optimizer.capture.nodes import rename, storage_of
from placewire.optimizer.capture.recompute import dependent, recompute
from placewire.optimizer.capture.running_averages import with_own_running_averages
from placewire.optimizer.capture.scaling import SAVED_AS, scale_loss
from placewire.optimizer.capture.shards import Shard, with_shards
from placewire.optimizer.capture.small_weights import Member, replica_name, with_small_weights
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.capture.writers import add_copies, add_updates, merge_ties
from placewire.optimizer.capture.written_out import is_state

aten = torch.ops.aten

# A buffer of at most this size that no step writes is kept by every rank that reads it: a copy
# costs memory once, a message costs time in every step.
REPLICATED_BYTES = 1 << 20


@dataclass(frozen=True)
class PlaceableGraph:
    """graph: placeholders, get_attr (constants), call_function, and call_module for updates.

    constant_names: of constants that are buffers, the name in the exported module. parameters,
    buffers: real values by node name. names: by node name the names of each of these in the
    exported module, several where parameters are tied, and none where it is a part of the
    optimizer's state. scaler: by node name what torch's GradScaler calls a buffer that is its
    state, which has no name in the module. shards: by node name which rows a parameter is, where it
    is not a whole one. members: by node name what a flat parameter is made of, which has no name
    itself. inputs: node name to position. writers: node name of each update or copy to the node
    name of what it writes. metrics: what is reported beside the loss, by name. outputs: of a
    forward pass alone the nodes that it returns; `loss` is then empty.
    """

    graph: fx.Graph
    constants: Mapping[str, torch.Tensor]
    constant_names: Mapping[str, str]
    parameters: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    names: Mapping[str, tuple[str, ...]]
    scaler: Mapping[str, str]
    shards: Mapping[str, Shard]
    members: Mapping[str, tuple[Member, ...]]
    inputs: Mapping[str, int]
    writers: Mapping[str, str]
    loss: str
    metrics: Mapping[str, str]
    outputs: tuple[str, ...] = ()

    @cached_property
    def updated_by_modules(self) -> frozenset[str]:
        """The parameters whose update is one operator, which holds the optimizer's state."""
        modules = self.graph.find_nodes(op="call_module")
        return frozenset(self.writers[node.name] for node in modules)

    @property
    def trained(self) -> Sequence[str]:
        """The names in the exported module of all parameters that have an update, each once; shards
        of one have its names."""
        found: dict[str, None] = {}
        for node in self.writers.values():
            if node in self.parameters:
                for names in self.names[node], *(one.names for one in self.members.get(node, ())):
                    found |= dict.fromkeys(names)
        return [*found]

    def choice_of(self, choice: OptimizerChoice, parameter: str) -> OptimizerChoice:
        """Returns the choice for the parameter with this node name."""
        return choice.of_parameter(self._names_of(parameter))

    def _names_of(self, node: str) -> tuple[str, ...]:
        """The members of a flat parameter are of one group."""
        return self.names[node] or self.members[node][0].names


def placeable(
    joint: JointGraph,
    choice: OptimizerChoice,
    micro_batches: int,
    batch_tensors: int,
    shards: int,
    written_out: bool = False,
) -> PlaceableGraph:
    """Rewrites joint.graph in place. joint: of one micro-batch, which has batch_tensors inputs;
    input k of micro-batch m gets position m * batch_tensors + k. shards: into how many a large
    weight is cut, and how many replicas small ones have. written_out: updates are elementary
    operators, and small weights stay apart. Raises CaptureError."""
    graph = joint.graph
    graph.erase_node(graph.output_node())
    joint = without_identity_views(joint)
    if not joint.outputs:  # else nothing goes back
        recompute(graph, dependent(graph, joint.tangents))
    made, constant_names = _constants_of_placeholders(joint, micro_batches, choice)
    constants = {**joint.constants, **made}
    if choice.scaler is not None:
        joint = scale_loss(joint, choice.scaler, micro_batches)
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        _split_convolution_backward(graph, node)
    joint, names = merge_ties(joint)
    names |= dict.fromkeys(SAVED_AS, ())
    joint, cut = with_shards(joint, shards, choice)
    names |= {name: names.get(shard.name, (shard.name,)) for name, shard in cut.items()}
    members: dict[str, tuple[Member, ...]] = {}
    if micro_batches > 1:
        count = 1 if written_out else min(shards, micro_batches)
        joint, flat = with_small_weights(joint, names, count, choice)
        joint = with_own_running_averages(joint)
        replicas = {name: [replica_name(name, r) for r in range(count)] for name in flat}
        members = {one: flat[name] for name, some in replicas.items() for one in some}
        names |= dict.fromkeys(members, ())
        reported = (joint.loss, *joint.metrics.values())
        results = (*reported, *joint.gradients.values(), *joint.new_buffers.values())
        read = (*joint.parameters.values(), *joint.buffers.values(), *joint.inputs.values())
        drop_dead(graph, keep={node.name for node in (*results, *read)})
        joint = unrolled(joint, micro_batches, batch_tensors, replicas)
        graph = joint.graph
    if micro_batches == 1:
        for name, node in joint.metrics.items():
            rename(node, "metric", name)

    def choice_of(name: str) -> OptimizerChoice:
        return choice.of_parameter(names.get(name, (name,)))

    joint, parameters, updates, metrics = add_updates(
        joint, choice, choice_of if written_out else None
    )
    buffers, copies = add_copies(joint)
    writers = {**updates, **copies}
    outputs = tuple(node.name for node in joint.outputs)
    inputs = {}
    for position, node in joint.inputs.items():
        if node.users:
            if micro_batches == 1:
                rename(node, "input", str(position))
            inputs[node.name] = position
    drop_dead(graph, keep={joint.loss.name, *outputs, *metrics.values(), *writers})
    read_constants = {node.target for node in graph.find_nodes(op="get_attr")}
    return PlaceableGraph(
        graph=graph,
        constants={k: v for k, v in constants.items() if k in read_constants},
        constant_names={k: v for k, v in constant_names.items() if k in read_constants},
        parameters={node: joint.values[name].detach() for node, name in parameters.items()},
        buffers={node: joint.values[name].detach() for node, name in buffers.items()},
        names={
            n: () if is_state(name) else names.get(name, (name,))
            for n, name in {**parameters, **buffers}.items()
        },
        scaler={node: SAVED_AS[name] for node, name in buffers.items() if name in SAVED_AS},
        shards={node: cut[name] for node, name in parameters.items() if name in cut},
        members={node: members[name] for node, name in parameters.items() if name in members},
        inputs=inputs,
        writers=writers,
        loss="" if outputs else joint.loss.name,
        metrics=metrics,
        outputs=outputs,
    )


def without_identity_views(joint: JointGraph) -> JointGraph:
    """Removes views that equal what they were made from: detach, and chains such as t(t(x))."""
    instead: dict[fx.Node, fx.Node] = {}
    for node in list(joint.graph.nodes):
        original = _identical_ancestor(node) if node.op == "call_function" else None
        if original is not None:
            node.replace_all_uses_with(original)
            instead[node] = original
    return replace(
        joint,
        loss=instead.get(joint.loss, joint.loss),
        metrics={k: instead.get(v, v) for k, v in joint.metrics.items()},
        outputs=tuple(instead.get(v, v) for v in joint.outputs),
        gradients={k: instead.get(v, v) for k, v in joint.gradients.items()},
        new_buffers={k: instead.get(v, v) for k, v in joint.new_buffers.items()},
    )


def _identical_ancestor(node: fx.Node) -> fx.Node | None:
    """Returns the furthest ancestor in the node's chain of views that has the same memory, shape,
    strides and type."""
    found, current = None, node
    while current.all_input_nodes:
        above = current.all_input_nodes[0]
        if storage_of(above) is None or storage_of(above) != storage_of(node):
            break
        current = above
        a, b = above.meta["val"], node.meta["val"]
        if (
            Layout.of(a) == Layout.of(b)
            and a.storage_offset() == b.storage_offset()
            # A conjugate and a negative are views, too.
            and not a.is_complex()
            and a.is_neg() == b.is_neg()
        ):
            found = above
    return found


def _constants_of_placeholders(
    joint: JointGraph, micro_batches: int, choice: OptimizerChoice
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Makes these placeholders constants: the loss's own gradient (one, or its share in the mean),
    unless the loss is scaled, and small buffers that are only read. Returns also the names of the
    buffers."""
    constants, names = dict[str, torch.Tensor](), dict[str, str]()
    for node in joint.tangents if choice.scaler is None else ():
        value = node.meta["val"]
        one = torch.ones(value.shape, dtype=value.dtype, device=value.device)
        constants[_to_constant(joint.graph, node)] = one / micro_batches
    for name, node in joint.buffers.items():
        value = joint.values[name]
        if name not in joint.new_buffers and value.nbytes <= REPLICATED_BYTES and node.users:
            constant = _to_constant(joint.graph, node)
            constants[constant], names[constant] = value.detach(), name
    return constants, names


def _to_constant(graph: fx.Graph, placeholder: fx.Node) -> str:
    name = f"constant_{placeholder.name}"
    with graph.inserting_after(placeholder):
        constant = graph.create_node("get_attr", name)
    constant.meta = dict(placeholder.meta)
    placeholder.replace_all_uses_with(constant)
    return name


def _split_convolution_backward(graph: fx.Graph, node: fx.Node) -> None:
    """Splits the node into one for the gradient of the input and one for those of weight and bias,
    which can then run at the same time. The kernel computes weight and bias together."""
    arguments: tuple[Any, ...] = node.args
    *rest, mask = arguments
    if not (mask[0] and (mask[1] or mask[2])):
        return
    for part in ([True, False, False], [False, mask[1], mask[2]]):
        with graph.inserting_before(node):
            split = graph.create_node("call_function", node.target, (*rest, part))
        split.meta = dict(node.meta)
        split.meta["val"] = tuple(
            value if wanted else None for value, wanted in zip(node.meta["val"], part, strict=True)
        )
        for item in list(node.users):
            position: Any = item.args[1]
            if part[position]:
                item.replace_input_with(node, split)
    graph.erase_node(node)


def drop_dead(graph: fx.Graph, keep: set[str]) -> None:
    """Erases the nodes that no node in `keep` needs."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.name not in keep:
            graph.erase_node(node)
