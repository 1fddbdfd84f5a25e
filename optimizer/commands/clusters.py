"""The cluster arguments of commands: a file, or a number of equal servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewire.optimizer.commands.arguments import bits_per_second, byte_count, duration, positive
from placewire.optimizer.commands.outcome import InputError, say

if TYPE_CHECKING:
    from placewire.optimizer.cluster import Cluster
    from placewire.optimizer.graph.operator_graph import OperatorGraph

_NEEDED = ("servers", "nics", "rate", "device_memory")
_SETUP_LATENCY_SECONDS = 50e-6
# Servers of one device never use this rate.
_INTRA_SERVER_BITS_PER_SECOND = 400e9


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        type=Path,
        help="plan.yaml, or another .yaml file with a `cluster` section, with line rates of NICs; "
        "or JSON with payload rates: a cluster file, like examples/clusters/*.json, or a placement",
    )
    add_equal_servers(parser)


def add_equal_servers(parser: argparse.ArgumentParser) -> None:
    short = parser.add_argument_group("instead of --cluster, equal servers of one device each")
    short.add_argument("--servers", type=positive, help="how many")
    short.add_argument("--nics", type=positive, help="NICs of each server, each on its own rail")
    short.add_argument(
        "--rate",
        type=bits_per_second,
        help="payload rate of each NIC, like 160Gbit: about 92%% of its line rate",
    )
    short.add_argument("--device-memory", type=byte_count, help="of each device, like 16GiB")
    short.add_argument("--device-type", help="of each device; default: the graph's, if it has one")
    short.add_argument(
        "--setup-latency",
        type=duration,
        help="how long a message takes before its first byte travels; default: 50us",
    )
    short.add_argument(
        "--message-time",
        type=duration,
        help="for how long a message keeps each of its two devices from computing; default: 100us "
        "for processors, 20us for GPUs",
    )
    short.add_argument(
        "--message-time-per-mib",
        type=duration,
        help="and for how long each MiB of it does; default: 2.1ms for processors, 0s for GPUs",
    )


def refuse_half_a_cluster(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with code 2 where the options describe no cluster, or two."""
    from placewire.optimizer.cluster_plan.values import MOST_RAILS, MOST_SERVERS

    short = [*_NEEDED, "device_type", "setup_latency", "message_time", "message_time_per_mib"]
    given = [name for name in short if getattr(options, name) is not None]
    missing = [name for name in _NEEDED if getattr(options, name) is None]
    if options.cluster is not None and given:
        parser.error(f"{_flag(given[0])} describes another cluster than --cluster does; drop one")
    if options.cluster is None and missing:
        flags = ", ".join(map(_flag, missing))
        parser.error(f"give --cluster FILE, or describe equal servers; missing: {flags}")
    for name, most in (("servers", MOST_SERVERS), ("nics", MOST_RAILS)):
        if (getattr(options, name) or 0) > most:
            parser.error(f"{_flag(name)} is at most {most}, as in a plan")


def cluster_of(options: argparse.Namespace, graph: OperatorGraph) -> Cluster:
    """Raises OSError; InputError naming the key of the file that is wrong, or where the graph has
    times for several device types and none was chosen."""
    if options.cluster is not None:
        return read_cluster(options.cluster)
    return equal_servers(options, graph, str(options.graph))


def equal_servers(options: argparse.Namespace, graph: OperatorGraph, where: str) -> Cluster:
    """where: the graph's name in messages. Raises InputError as above."""
    from placewire.optimizer.chunks import with_windows
    from placewire.optimizer.cluster import Cluster, Device, Nic, Server, assumed_message_time

    if options.device_type is None and len(graph.device_types) != 1:
        found = ", ".join(graph.device_types) or "none (profile it)"
        raise InputError(f"{where}: times for {found}; choose one with --device-type")
    kind = options.device_type or graph.device_types[0]
    device = Device(type=kind, memory_bytes=options.device_memory)
    nics = tuple(
        Nic(rail=f"r{k + 1}", rate_bits_per_second=options.rate) for k in range(options.nics)
    )
    latency, assumed = options.setup_latency, assumed_message_time([kind])
    each, per_mib = options.message_time, options.message_time_per_mib
    made = Cluster(
        servers=tuple(
            Server(name=f"s{k + 1}", devices=(device,), nics=nics) for k in range(options.servers)
        ),
        setup_latency_seconds=_SETUP_LATENCY_SECONDS if latency is None else latency,
        message_seconds=assumed.seconds if each is None else each,
        message_seconds_per_byte=assumed.seconds_per_byte if per_mib is None else per_mib / 2**20,
        intra_server_bits_per_second=_INTRA_SERVER_BITS_PER_SECOND,
    )
    return with_windows(made)


def read_cluster(path: Path) -> Cluster:
    """Reads the `cluster` of a plan, a cluster file, or the `cluster` key of another JSON file,
    such as a placement. Says on standard error what was read of a plan. Raises as above."""
    if path.suffix in (".yaml", ".yml"):
        return _planned_cluster(path)
    from pydantic import ValidationError

    from placewire.optimizer.cluster import Cluster
    from placewire.optimizer.graph.json_file import read_json
    from placewire.optimizer.graph.validation_message import first_mistake

    document: Any = read_json(path)
    if isinstance(document, dict) and "servers" not in document and "cluster" in document:
        document = document["cluster"]
    try:
        return Cluster.model_validate(document)
    except ValidationError as error:
        raise InputError(f"{path}: {first_mistake(error)}") from error


def _planned_cluster(path: Path) -> Cluster:
    from placewire.optimizer.cluster_plan.documents import DocumentError
    from placewire.optimizer.cluster_plan.reading import read_plan_cluster

    try:
        cluster, words = read_plan_cluster(path)
    except DocumentError as error:
        lines = str(error).splitlines()
        raise InputError("\n".join(f"{path}: {line}" for line in lines)) from error
    say(words)
    return cluster


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
