"""Captures what validation computes: the loss and metrics of a batch in evaluation mode.

Its graph has a forward half alone, and nothing that writes. It reads the training step's parameters
and buffers, under the same operator ids, in whatever parts the step holds them. So a rank that
holds one for training has it for validation, too, with the value of the last step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import fx

from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.evaluation_mode import in_evaluation_mode
from placewire.optimizer.capture.joint import JointGraph, joint_graph
from placewire.optimizer.capture.nodes import MODULE, rename
from placewire.optimizer.capture.protocol import Tensors
from placewire.optimizer.capture.refusals import refuse_what_cannot_run
from placewire.optimizer.capture.rewrite import (
    REPLICATED_BYTES,
    PlaceableGraph,
    drop_dead,
    without_identity_views,
)
from placewire.optimizer.capture.shards import join, placeholders
from placewire.optimizer.capture.small_weights import Member, placeholder, read_from
from placewire.optimizer.capture.variants import Autocast

# What the names of its own constants begin with: the training step has constants of its own.
_OWN = "validation_"


def validation_graph(
    module: torch.nn.Module,
    example: Tensors,
    training: PlaceableGraph,
    where: str,
    autocast: Autocast | None,
) -> PlaceableGraph:
    """example: the inputs of a batch, or of a micro-batch. training: holds the values. Raises
    CaptureError."""
    where = f"{where} in evaluation mode"
    with in_evaluation_mode(module), torch.no_grad():
        joint = joint_graph(module, example, where, autocast)
    refuse_what_cannot_run(joint, where)
    if joint.new_buffers:
        raise CaptureError(
            f"{where}: the model writes buffer {min(joint.new_buffers)}; a validation must leave "
            "the training as it is: write it only while self.training"
        )
    joint.graph.erase_node(joint.graph.output_node())
    joint = without_identity_views(joint)
    held = _Held(joint, training, where)
    held.bind()
    for position, node in joint.inputs.items():
        rename(node, "input", str(position))
    for name, node in joint.metrics.items():
        rename(node, "metric", name)
    metrics = {name: node.name for name, node in joint.metrics.items()}
    drop_dead(joint.graph, keep={joint.loss.name, *metrics.values()})
    read = {node.name for node in joint.graph.find_nodes(op="placeholder")}
    constants = {str(node.target) for node in joint.graph.find_nodes(op="get_attr")}
    return replace(
        training,
        graph=joint.graph,
        constants={k: v for k, v in held.constants.items() if k in constants},
        constant_names={k: v for k, v in held.constant_names.items() if k in constants},
        parameters={k: v for k, v in training.parameters.items() if k in read},
        buffers={k: v for k, v in training.buffers.items() if k in read},
        names={k: v for k, v in training.names.items() if k in read},
        inputs={node.name: k for k, node in joint.inputs.items() if node.name in read},
        writers={},
        loss=joint.loss.name,
        metrics=metrics,
    )


@dataclass
class _Held:
    """Makes placeholders of the training step's own, by operator id."""

    joint: JointGraph
    training: PlaceableGraph
    where: str
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    constant_names: dict[str, str] = field(default_factory=dict)
    made: dict[str, fx.Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Finds by the names in the exported module which operators hold a value: one the whole,
        several shards of it, or one with other small weights, of which the first replica counts."""
        self.whole: dict[str, str] = {}
        self.shards: dict[str, list[str]] = {}
        self.members: dict[str, tuple[str, Member]] = {}
        for identifier, names in self.training.names.items():
            for name in names:
                if identifier in self.training.shards:
                    self.shards.setdefault(name, []).append(identifier)
                else:
                    self.whole[name] = identifier
        for identifier, some in self.training.members.items():
            for member in some:
                for name in member.names:
                    self.members.setdefault(name, (identifier, member))

    def bind(self) -> None:
        graph = self.joint.graph
        for node in graph.find_nodes(op="get_attr"):
            own = f"{_OWN}{node.target}"
            self.constants[own] = self.joint.constants[str(node.target)]
            node.target = own
        first_operator = next(node for node in graph.nodes if node.op != "placeholder")
        for name, node in (*self.joint.parameters.items(), *self.joint.buffers.items()):
            if node.users and not self._is_held(name, node, first_operator):
                self._to_constant(name, node)

    def _is_held(self, name: str, node: fx.Node, first_operator: fx.Node) -> bool:
        """Whether the training step holds it; if so, whoever read the node reads that."""
        if name in self.whole:
            node.replace_all_uses_with(self._placeholder(self.whole[name], node))
        elif name in self.shards:
            join(node, self._shards(self.shards[name], node), first_operator)
        elif name in self.members:
            identifier, member = self.members[name]
            read_from(self._flat(identifier, node), node, member, first_operator)
        else:
            return False
        return True

    def _to_constant(self, name: str, node: fx.Node) -> None:
        """Raises CaptureError where it is not among what every rank keeps."""
        value = self.joint.values[name].detach()
        named = {name: constant for constant, name in self.training.constant_names.items()}
        if name not in named and (name in self.joint.parameters or value.nbytes > REPLICATED_BYTES):
            raise CaptureError(
                f"{self.where}: the model reads {name}, which no training step reads, so that no "
                "rank holds it; read it in both modes"
            )
        constant = named.get(name, f"{_OWN}{node.name}")
        self.constants[constant] = self.training.constants.get(constant, value)
        self.constant_names[constant] = name
        with node.graph.inserting_after(node):
            made = node.graph.create_node("get_attr", constant)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)

    def _placeholder(self, identifier: str, node: fx.Node) -> fx.Node:
        if identifier not in self.made:
            with node.graph.inserting_before(node):
                made = node.graph.placeholder(identifier)
            made.meta = {"val": node.meta["val"], MODULE: node.meta.get(MODULE, "")}
            self._named(made, identifier)
        return self.made[identifier]

    def _shards(self, identifiers: list[str], node: fx.Node) -> list[fx.Node]:
        cut = {identifier: self.training.shards[identifier] for identifier in identifiers}
        cut = dict(sorted(cut.items(), key=lambda one: one[1].start))
        if identifiers[0] not in self.made:  # else it is tied
            for identifier, shard in placeholders(node, cut).items():
                self._named(shard, identifier)
        return [self.made[identifier] for identifier in cut]

    def _flat(self, identifier: str, node: fx.Node) -> fx.Node:
        if identifier not in self.made:
            self._named(placeholder(node, self.training.members[identifier]), identifier)
        return self.made[identifier]

    def _named(self, made: fx.Node, identifier: str) -> None:
        made._rename(identifier)
        made.target = identifier
        assert made.name == identifier, "the graph has a node of this name"
        self.made[identifier] = made
