"""Reads the protobuf messages of a Chakra execution trace, each of which follows its length.

The fields are those of the schema 0.0.4 (mlcommons/chakra, et_def.proto) from which a graph is
made; others are skipped. The first message is the file's metadata, every other one a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from placewire.optimizer.graph.operator_graph import GraphError

VERSION = "0.0.4"
_PACKAGE = "placewire.chakra"
# message: {field: (number, kind)}. An attribute has one of its scalars: the last that is stated.
_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "Attribute": {
        "name": (1, "string"), "double": (3, "double"), "float": (5, "float"),
        "int32": (7, "int32"), "int64": (9, "int64"), "uint32": (11, "uint32"),
        "uint64": (13, "uint64"), "sint32": (15, "sint32"), "sint64": (17, "sint64"),
        "bool": (27, "bool"), "string": (29, "string"),
    },
    "Metadata": {"version": (1, "string"), "attr": (2, "repeated Attribute")},
    "Tensors": {"values": (1, "string"), "shapes": (2, "string"), "types": (3, "string")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "int32"),
        "ctrl_deps": (4, "repeated uint64"), "data_deps": (5, "repeated uint64"),
        "duration_micros": (7, "uint64"), "inputs": (8, "Tensors"), "outputs": (9, "Tensors"),
        "attr": (10, "repeated Attribute"),
    },
}  # fmt: skip


def read_messages(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yields (like "node 5 at byte 120", the node) for every node. Raises GraphError where the file
    has no valid length or message, and for another version of the schema."""
    from google.protobuf.message import DecodeError

    kinds = message_kinds()
    for number, (start, body) in enumerate(_bodies(data)):
        try:
            message = kinds["Node" if number else "Metadata"].FromString(body)
        except DecodeError as error:
            raise GraphError(f"byte {start}: no message of a Chakra trace: {error}") from error
        if number:
            yield f"node {message.id} at byte {start}", message
            continue
        # Metadata without a version are taken for those of the version that is read.
        stated = message.version or str(attributes(message).get("schema", ""))
        if stated and VERSION not in stated:
            raise GraphError(f"its schema is {stated!r}; this release reads Chakra's {VERSION}")


def attributes(message: Any) -> dict[str, Any]:
    """The values of the message's attributes by name, without lists and bytes."""
    found = {}
    for one in message.attr:
        for field, value in one.ListFields():
            if field.name != "name":
                found[one.name] = value
    return found


def _bodies(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the byte at which each message's length begins, and the message."""
    position = 0
    while position < len(data):
        start, size, shift = position, 0, 0
        while True:
            if position >= len(data) or shift > 28:
                raise GraphError(f"byte {start}: no Chakra trace: no message's length is here")
            byte = data[position]
            size |= (byte & 0x7F) << shift
            position, shift = position + 1, shift + 7
            if byte < 0x80:
                break
        if position + size > len(data):
            raise GraphError(
                f"byte {start}: a message of {size} bytes begins here, and the file ends after "
                f"{len(data) - position}"
            )
        yield start, data[position : position + size]
        position += size


@cache
def message_kinds() -> dict[str, Any]:
    """Message classes by name, in a pool of their own."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="placewire/chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        if name == "Attribute":  # a oneof tells a stated False from a missing value
            message.oneof_decl.add(name="value")
        for field, (number, kind) in fields.items():
            word = kind.removeprefix("repeated ")
            added = message.field.add(name=field, number=number)
            if name == "Attribute" and field != "name":
                added.oneof_index = 0
            added.label = added.LABEL_REPEATED if kind != word else added.LABEL_OPTIONAL
            if word in _FIELDS:
                added.type, added.type_name = added.TYPE_MESSAGE, f".{_PACKAGE}.{word}"
            else:
                added.type = getattr(added, f"TYPE_{word.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _FIELDS
    }
