"""Unrolls gradient accumulation: repeats the graph of one micro-batch for each micro-batch.

What depends on parameters and constants alone stays single, but for weights that are joined from
shards or have replicas, what is computed from these, and views: a device that reads a weight and
its transpose gets the weight alone (common_views.py). A micro-batch reads one replica, and the
buffers that the one before wrote. A running average is moved once, by all micro-batches.
Gradients are added in the order of the micro-batches, as in `.grad`; the loss is the mean of the
micro-batches' losses, and so is each metric. Micro-batches can thus overlap on different devices.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from placewire.optimizer.capture.common_views import views_to_repeat
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.joint import JointGraph
from placewire.optimizer.capture.metrics import LOSS
from placewire.optimizer.capture.nodes import (
    MICRO_BATCH,
    PER_MICRO_BATCH,
    STORAGE,
    in_layout_of,
    is_random,
    rename,
    storage_of,
)
from placewire.optimizer.capture.protocol import Tensors
from placewire.optimizer.capture.running_averages import MOVES
from placewire.optimizer.capture.writers import sum_of

aten = torch.ops.aten


def split_batch(batch: Tensors, count: int) -> Tensors:
    """Returns all tensors of the first micro-batch, then those of the second, and so on; each has
    memory of its own, so that a rank holds only what it reads and not the whole batch."""
    if count == 1:
        return batch
    parts = [x.chunk(count) for x in batch]
    return tuple(part[m].clone() for m in range(count) for part in parts)


def refuse_what_does_not_split(inputs: Tensors, batch: int, count: int, where: str) -> None:
    """Raises CaptureError where inputs cannot be cut into `count` equal parts by the batch."""
    if count == 1:
        return
    if batch % count:
        raise CaptureError(
            f"job.batch {batch} cannot be cut into job.accumulate {count} equal micro-batches; "
            f"give a batch that {count} divides"
        )
    for position, value in enumerate(inputs):
        if value.dim() == 0 or value.shape[0] != batch:
            raise CaptureError(
                f"{where}: input {position} is of shape {tuple(value.shape)}, and job.accumulate "
                f"{count} cuts the batch along the first dimension, which must be job.batch "
                f"{batch}; make what is the same for all samples a buffer of the model"
            )


def unrolled(
    joint: JointGraph, count: int, batch_tensors: int, replicas: Mapping[str, Sequence[str]]
) -> JointGraph:
    """Returns a new graph of `count` copies, whose names end in _m0, _m1 and so on. joint: without
    tied parameters, and with the tangent of the mean already. replicas: by parameter the names of
    its replicas, where it has several; micro-batch m reads replica m modulo their number, and each
    has gradients of all micro-batches."""
    return _Unrolling(joint, count, batch_tensors, replicas).result()


def _operator_name(reported: str) -> str:
    return reported if reported == LOSS else f"metric_{reported}"


class _Unrolling:
    def __init__(
        self,
        joint: JointGraph,
        count: int,
        batch_tensors: int,
        replicas: Mapping[str, Sequence[str]],
    ) -> None:
        self.joint, self.count = joint, count
        self.graph = fx.Graph()
        self.replicas = {
            joint.parameters[name]: {one: self._replica(joint.parameters[name]) for one in names}
            for name, names in replicas.items()
        }
        self.once = self._copy_what_is_common()
        self.once_in_memory = {storage_of(node) for node in self.once}
        # What is computed once still reads the views that are made once. rewrite.py erases those
        # that nothing reads any more.
        views = views_to_repeat(self.once.keys())
        self.shared = {node: copy for node, copy in self.once.items() if node not in views}
        self.inputs = {
            m * batch_tensors + k: self._copied(node, f"input_{k}_m{m}", {}, m)
            for m in range(count)
            for k, node in joint.inputs.items()
        }
        self.counters = self._counters()
        self.averages = {
            name: node for name, node in joint.new_buffers.items() if node.target in MOVES
        }
        self.input_at = {node: k for k, node in joint.inputs.items()}
        self.batch_tensors = batch_tensors
        self.totals: dict[str, fx.Node] = {}
        self.gradient_names: dict[fx.Node, list[str]] = {}
        for name, node in joint.gradients.items():
            self.gradient_names.setdefault(node, []).extend(replicas.get(name, (name,)))

    def result(self) -> JointGraph:
        joint = self.joint
        changing = {name: node for name, node in joint.buffers.items() if name in joint.new_buffers}
        buffers = {name: self._copied(node, node.name, {}) for name, node in changing.items()}
        written = {name: node for name, node in changing.items() if name not in self.averages}
        carried = {name: buffers[name] for name in written}
        reported = {LOSS: joint.loss, **joint.metrics}
        shares: dict[str, list[fx.Node]] = {name: [] for name in reported}
        found: dict[str, list[fx.Node]] = {name: [] for name in self.averages}
        for m in range(self.count):
            here = {**self.shared, **{node: carried[name] for name, node in written.items()}}
            here |= {node: [*some.values()][m % len(some)] for node, some in self.replicas.items()}
            self._add_micro_batch(m, here)
            carried = {
                name: in_layout_of(here[joint.new_buffers[name]], node.meta["val"])
                for name, node in written.items()
            }
            for name, node in carried.items():
                if joint.new_buffers[name] not in self.counters:
                    node.meta.setdefault(MICRO_BATCH, m)
            for name, average in self.averages.items():
                found[name].append(here[average.all_input_nodes[1]])
            for name, node in reported.items():
                shares[name].append(self._share(here[node], m, _operator_name(name)))
        means = {name: sum_of(self.graph, some) for name, some in shares.items()}
        for name, mean in means.items():
            rename(mean, _operator_name(name), "of_the_batch")
        moved = {name: self._average(name, buffers[name], some) for name, some in found.items()}
        return replace(
            joint,
            graph=self.graph,
            parameters=self._parameters(),
            buffers={
                name: buffers.get(name) or self.once[node] for name, node in joint.buffers.items()
            },
            inputs=self.inputs,
            loss=means.pop(LOSS),
            metrics=means,
            gradients=self.totals,
            new_buffers={name: {**carried, **moved}[name] for name in changing},
            values=self._values(),
        )

    def _share(self, value: fx.Node, m: int, name: str) -> fx.Node:
        """What a micro-batch adds to a mean over all of them."""
        share = self.graph.call_function(aten.div.Tensor, (value, self.count))
        with value.meta["val"].fake_mode:
            share.meta["val"] = value.meta["val"] / self.count
        share.meta[MICRO_BATCH] = m
        rename(share, name, f"m{m}")
        return share

    def _average(self, name: str, buffer: fx.Node, statistics: list[fx.Node]) -> fx.Node:
        """The average after those of all micro-batches; statistics: one for each."""
        of_one = self.averages[name]
        arguments = (buffer, statistics, *of_one.args[2:])
        moved = self.graph.create_node("call_function", of_one.target, arguments)
        moved.meta = dict(of_one.meta)
        rename(moved, "average", name)
        return moved

    def _replica(self, node: fx.Node) -> fx.Node:
        copy = self.graph.placeholder(node.name)
        value = node.meta["val"]
        with value.fake_mode:
            copy.meta = {**node.meta, "val": torch.empty_like(value)}
        return copy

    def _parameters(self) -> dict[str, fx.Node]:
        found: dict[str, fx.Node] = {}
        for name, node in self.joint.parameters.items():
            found |= self.replicas.get(node) or {name: self.once[node]}
        return found

    def _values(self) -> dict[str, torch.Tensor]:
        """Each replica has memory of its own."""
        found = dict(self.joint.values)
        for name, node in self.joint.parameters.items():
            if node in self.replicas:
                value = found.pop(name)
                found |= {replica: value.clone() for replica in self.replicas[node]}
        return found

    def _copy_what_is_common(self) -> dict[fx.Node, fx.Node]:
        """Copies parameters, constants, and what depends on these alone. Returns the copies."""
        changing = {
            *self.replicas,
            *self.joint.inputs.values(),
            *(node for name, node in self.joint.buffers.items() if name in self.joint.new_buffers),
        }
        once: dict[fx.Node, fx.Node] = {}
        for node in self.joint.graph.nodes:
            known = all(source in once for source in node.all_input_nodes)
            repeated = is_random(node) or PER_MICRO_BATCH in node.meta
            if known and node not in changing and not repeated:
                once[node] = self._copied(node, node.name, once)
        return once

    def _counters(self) -> set[fx.Node]:
        """Nodes that count micro-batches, as a batch norm does: each value depends on the one
        before alone, and no other node reads it. A whole counter belongs on one device, which need
        not be told that a micro-batch begins."""
        joint = self.joint
        changing = {joint.buffers[name] for name in joint.new_buffers}
        counters, known = set[fx.Node](), {*changing, *self.once}
        for node in joint.graph.nodes:
            repeated = is_random(node) or PER_MICRO_BATCH in node.meta
            if node.op != "call_function" or node in known or repeated:
                continue
            if node.all_input_nodes and known.issuperset(node.all_input_nodes):
                counters.add(node)
                known.add(node)

        def meets_a_micro_batch(node: fx.Node) -> bool:
            sources = [i for i in node.all_input_nodes if i not in self.once]
            ends = {*node.users, *(user for i in sources for user in i.users), *sources}
            return any(end not in counters | changing and end.op != "output" for end in ends)

        while wrong := {node for node in counters if meets_a_micro_batch(node)}:
            counters -= wrong
        return counters

    def _add_micro_batch(self, m: int, here: dict[fx.Node, fx.Node]) -> None:
        """here: by node of the captured graph its copy; it gets the copies of all nodes."""
        memory: dict[Hashable, Hashable] = {
            storage_of(node): storage_of(copy)
            for node, copy in here.items()
            if node.op == "placeholder"
        }
        for node, copy in self.shared.items():
            for name in self.gradient_names.get(node, ()):
                self._add_gradient(m, name, copy)
        moved = {self.joint.buffers[name] for name in self.averages} | {*self.averages.values()}
        for node in self.joint.graph.nodes:
            if node in here or node in moved:
                continue
            if node in self.input_at:
                here[node] = self.inputs[m * self.batch_tensors + self.input_at[node]]
            else:
                part = None if node in self.counters else m
                here[node] = self._copied(node, f"{node.name}_m{m}", here, part)
            if (place := storage_of(node)) is not None and place not in self.once_in_memory:
                here[node].meta[STORAGE] = memory.setdefault(place, (place, m))
            for name in self.gradient_names.get(node, ()):
                self._add_gradient(m, name, here[node])

    def _copied(
        self,
        node: fx.Node,
        name: str,
        here: Mapping[fx.Node, fx.Node],
        micro_batch: int | None = None,
    ) -> fx.Node:
        arguments, options = fx.node.map_arg((node.args, node.kwargs), here.__getitem__)
        target = name if node.op == "placeholder" else node.target
        copy = self.graph.create_node(node.op, target, arguments, options, name=name)
        copy.meta = dict(node.meta)
        if micro_batch is not None:
            copy.meta[MICRO_BATCH] = micro_batch
        return copy

    def _add_gradient(self, m: int, name: str, gradient: fx.Node) -> None:
        if m == 0:
            self.totals[name] = gradient
            return
        self.totals[name] = sum_of(self.graph, [self.totals[name], gradient])
        rename(self.totals[name], "gradient", f"{name}_m{m}")
