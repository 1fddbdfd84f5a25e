"""A placement and its file: what simulator, controller and job read of the optimizer's decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ValidationError, model_validator

from placewire.frozen import Frozen
from placewire.optimizer.arrays import FloatArray
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.device_names import server_of
from placewire.optimizer.graph.document_kind import PLACEMENT, other_kind
from placewire.optimizer.graph.json_file import read_json, write_json
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.graph.validation_message import first_mistake
from placewire.optimizer.names import DEFAULT_FLOOR, Backend, Model, SharingName


class PlacementError(ValueError):
    """A document or file is not a valid placement."""


class Sent(NamedTuple):
    """A tensor in a message: output number `output` of the operator `producer`."""

    producer: str
    output: int
    bytes: int


class Message(Frozen):
    """One send of one tensor, or of several small ones, to one other device.

    producer: the operator that makes the tensor. output: the tensor's number among its outputs.
    bundled: tensors that lie before this one in the same message, in this order; the source runs
    their producers before `producer`, after which the message may leave. bytes: of all of them.
    send_order: of the messages that wait, the smallest is sent first (the one with the longest
    remaining path). rails: share of the bytes on each rail, summing to 1; empty inside one server.
    """

    producer: str
    output: int = 0
    bundled: tuple[Sent, ...] = ()
    source: str
    destination: str
    bytes: int
    send_order: int
    rails: Mapping[str, float]

    @property
    def tensors(self) -> tuple[Sent, ...]:
        """All tensors of the message, in the order in which they lie in it."""
        own = self.bytes - sum(one.bytes for one in self.bundled)
        return (*self.bundled, Sent(self.producer, self.output, own))


class Variant(Frozen):
    """A graph of the placed step, cut into some number of micro-batches and shards. step_seconds:
    the shortest that was found, None where it was not searched."""

    name: str
    structure_hash: str
    operators: int
    step_seconds: float | None
    bound_seconds: float
    single_device_seconds: float | None


class Placement(Frozen):
    version: Literal[3] = 3
    structure_hash: str
    profile_digest: str
    cluster: Cluster
    model: Model
    sharing: SharingName
    backend: Backend = "gloo"
    floor: float = DEFAULT_FLOOR
    operators: Mapping[str, str]
    order: Mapping[str, tuple[str, ...]]
    # (source server, destination server, rail, payload bits per second)
    rates_bits_per_second: tuple[tuple[str, str, str, float], ...]
    messages: tuple[Message, ...]
    step_seconds: float
    bound_seconds: float
    bound_reason: str = ""
    gap: float
    single_device_seconds: float | None
    engine: str
    reduction: str
    seed: int
    wall_seconds: Mapping[str, float]
    # (source server, destination server, rail) of messages that other buckets' placements send.
    other_talks: tuple[tuple[str, str, str], ...] = ()
    # Those that were compared, this placement's among them; empty where there was only one.
    variants: tuple[Variant, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, document: Any) -> Any:
        """Version 2 had no bundles. Version 1 called `floor` `entitled`, and `send_order` `rank`,
        too."""
        if not isinstance(document, dict) or document.get("version", 3) not in (1, 2):
            return document
        if document["version"] == 2:
            return {**document, "version": 3}
        renamed = {"floor" if key == "entitled" else key: v for key, v in document.items()}
        if isinstance(messages := renamed.get("messages"), list):
            renamed["messages"] = [
                {"send_order" if key == "rank" else key: v for key, v in message.items()}
                if isinstance(message, dict)
                else message
                for message in messages
            ]
        return {**renamed, "version": 3}

    def with_variants(self, variants: Sequence[Variant], part: float = 1.0) -> Placement:
        """The same, which is of one of these variants, with its own figures among them. part: of
        the others' bounds that holds under this placement's sharing (`part_of_bound`)."""
        own = {
            "step_seconds": self.step_seconds,
            "bound_seconds": self.bound_seconds,
            "single_device_seconds": self.single_device_seconds,
        }
        noted = tuple(
            one.model_copy(
                update=own
                if one.structure_hash == self.structure_hash
                else {"bound_seconds": one.bound_seconds * part}
            )
            for one in variants
        )
        return self.model_copy(update={"variants": noted})

    def with_other_talks(self, talks: Iterable[tuple[str, str, str]]) -> Placement:
        """The same, for whose job the network also carries these."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return Placement(**{**fields, "other_talks": tuple(sorted(talks))})

    @property
    def best_single_device_seconds(self) -> float | None:
        """Of all variants: one device needs no micro-batches."""
        known = [self.single_device_seconds, *(one.single_device_seconds for one in self.variants)]
        return min((one for one in known if one is not None), default=None)

    @property
    def least_bound_seconds(self) -> float:
        """No placement of any variant is below."""
        return min([self.bound_seconds, *(one.bound_seconds for one in self.variants)])

    @cached_property
    def devices_used(self) -> tuple[str, ...]:
        return tuple(device for device, order in self.order.items() if order)

    @cached_property
    def server_pairs(self) -> frozenset[tuple[str, str]]:
        """(source, destination) of every two servers that exchange messages."""
        pairs = {(server_of(m.source), server_of(m.destination)) for m in self.messages}
        return frozenset((a, b) for a, b in pairs if a != b)

    @cached_property
    def talks(self) -> frozenset[tuple[str, str, str]]:
        """(source server, destination server, rail) of every message between servers, those of
        other buckets' placements among them."""
        return frozenset(self.other_talks) | frozenset(
            (server_of(message.source), server_of(message.destination), rail)
            for message in self.messages
            for rail, share in message.rails.items()
            if share > 0
        )

    @cached_property
    def rates(self) -> FloatArray:
        """float64[S, S, R] bits per second; 0 where nothing was allocated."""
        names = {s.name: i for i, s in enumerate(self.cluster.servers)}
        rails = {rail: i for i, rail in enumerate(self.cluster.rails)}
        rates = np.zeros((len(names), len(names), len(rails)))
        for source, destination, rail, rate in self.rates_bits_per_second:
            rates[names[source], names[destination], rails[rail]] = rate
        return rates


def placement_from_json(document: Any, where: str = "placement") -> Placement:
    """Raises PlacementError naming the key that is wrong."""
    if (other := other_kind(document, PLACEMENT)) is not None:
        raise PlacementError(f"{where}: {other}")
    try:
        return Placement.model_validate(document)
    except ValidationError as error:
        raise PlacementError(f"{where}: {first_mistake(error)}") from error


def load_placement(path: Path) -> Placement:
    """Raises OSError, and PlacementError naming the file."""
    try:
        document = read_json(path)
    except GraphError as error:
        raise PlacementError(str(error)) from error
    return placement_from_json(document, where=str(path))


def save_placement(placement: Placement, path: Path) -> None:
    write_json(path, placement.model_dump(mode="json"))
