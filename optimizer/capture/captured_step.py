"""A captured training step: its operators, its code, and its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from placewire.optimizer.capture.layout import Layout
from placewire.optimizer.capture.metrics import LOSS
from placewire.optimizer.capture.nodes import tensors_in
from placewire.optimizer.capture.operators import Analysis
from placewire.optimizer.capture.protocol import Tensors, shapes_of
from placewire.optimizer.capture.rewrite import PlaceableGraph
from placewire.optimizer.capture.state import StateNames
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.operator_graph import OperatorGraph


@dataclass(frozen=True)
class CapturedStep:
    """A captured training step; operator ids are node names of `code.graph`.

    operators   the step as an OperatorGraph, without seconds
    code        the nodes, the real parameters and buffers before the first step, constants, loss
    analysis    layouts, and which operators allocate, draw random numbers, share memory
    batches     step number -> inputs, by position; those of all micro-batches, one after another
    names       the names of parameters and buffers in a checkpoint
    validation  if there is one, what it computes of a micro-batch, of the same values; its batches
                are by the number of the batch, like those above
    shapes      of the inputs, by position
    bucket      the name of the bucket that has these shapes, "" where the model has no buckets
    buckets     the other buckets by name, whose steps are of the same values
    """

    optimizer: OptimizerChoice
    seed: int
    operators: OperatorGraph
    code: PlaceableGraph
    analysis: Analysis
    batches: Callable[[int], Tensors]
    names: StateNames
    shapes: tuple[str, ...]
    bucket: str = ""
    validation: CapturedStep | None = None
    buckets: Mapping[str, CapturedStep] = field(default_factory=dict)

    @property
    def each_bucket(self) -> Mapping[str, CapturedStep]:
        """By name all buckets, this one first."""
        return {self.bucket: self, **self.buckets}

    def bucket_of(self, inputs: Tensors) -> str:
        """Returns the name of the bucket with the shapes of these inputs, which `batches` gave."""
        found = shapes_of(inputs)
        return next(name for name, one in self.each_bucket.items() if one.shapes == found)

    @property
    def nodes(self) -> Mapping[str, fx.Node]:
        return self.analysis.by_name

    @property
    def layouts(self) -> Mapping[str, Layout]:
        return self.analysis.layouts

    @property
    def loss(self) -> str:
        """The operator whose tensor is the loss; empty where the step is a forward pass alone."""
        return self.code.loss

    @property
    def reported(self) -> Mapping[str, str]:
        """By name the operators whose scalars a step reports: `loss`, and metrics."""
        return {LOSS: self.code.loss, **self.code.metrics}

    @property
    def device(self) -> torch.device:
        """The device on which the step was captured, and on which it runs."""
        traced = (node.meta.get("val") for node in self.analysis.nodes)
        return next(tensors_in([*traced])).device

    def with_values(self, code: PlaceableGraph) -> CapturedStep:
        """code: the step's own, with other values. Validation and other buckets read these, too."""
        validation = self.validation
        return replace(
            self,
            code=code,
            validation=None if validation is None else validation._reading(code),
            buckets={name: one._reading(code) for name, one in self.buckets.items()},
        )

    def _reading(self, code: PlaceableGraph) -> CapturedStep:
        own = self.code
        return self.with_values(
            replace(
                own,
                parameters={i: code.parameters[i] for i in own.parameters},
                buffers={i: code.buffers[i] for i in own.buffers},
                constants={i: code.constants[i] for i in own.constants},
            )
        )

    @property
    def values(self) -> Mapping[str, torch.Tensor]:
        """Parameters and buffers by operator id."""
        return {**self.code.parameters, **self.code.buffers}
