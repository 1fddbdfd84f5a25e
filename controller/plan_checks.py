"""What a plan's parts must hold together: names, addresses, rails and the job's files.

Each check yields (YAML path, message). Fields on their own are checked where they are parsed.
"""

from __future__ import annotations

import importlib.machinery
import ipaddress
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from controller.compile.network import bridge_name
from controller.plan_values import shown

if TYPE_CHECKING:
    from controller.plan import PlacedJob, Plan, PlanNic, PlanServer, ReplayJob

Mistake = tuple[str, str]


def mistakes_of(plan: Plan, base: Path) -> Iterator[Mistake]:
    """base: where relative files of the job are looked for, beside the working directory."""
    yield from _cluster_mistakes(plan)
    yield from _job_mistakes(plan.job, base)


def _doubles(values: list[tuple[str, str]], what: str) -> Iterator[Mistake]:
    first: dict[str, str] = {}
    for path, value in values:
        if value in first:
            yield path, f"{what} {value!r} is already taken by {first[value]}; give another"
        first.setdefault(value, path)


def _cluster_mistakes(plan: Plan) -> Iterator[Mistake]:
    servers = [(f"cluster.servers[{s}]", server) for s, server in enumerate(plan.cluster.servers)]
    nics = [
        (f"{path}.nics[{k}]", server, nic)
        for path, server in servers
        for k, nic in enumerate(server.nics)
    ]
    yield from _doubles([(f"{p}.name", s.name) for p, s in servers], "server name")
    yield from _doubles([(f"{p}.management", s.management) for p, s in servers], "address")
    yield from _doubles([(f"{p}.address", n.ip) for p, _, n in nics], "address")
    for _, server in servers:
        own = [(f"{p}.name", n) for p, s, n in nics if s is server]
        yield from _interface_mistakes(server.name, own)
        rails = [(f"{p}.rail", n.rail) for p, s, n in nics if s is server]
        for place, message in _doubles(rails, f"on server {server.name}, rail"):
            yield place, f"{message}: a server has one NIC on a rail"
    yield from _subnet_mistakes(plan, nics)
    if plan.network.rails is not None:
        chosen = [(f"network.rails[{k}]", rail) for k, rail in enumerate(plan.network.rails)]
        yield from _doubles(chosen, "rail")
        for place, rail in chosen:
            if rail not in plan.cluster.rails:
                known = ", ".join(plan.cluster.rails)
                yield place, f"no NIC is on rail {rail!r}; accepted: {known}"


def _interface_mistakes(server: str, nics: list[tuple[str, PlanNic]]) -> Iterator[Mistake]:
    """NICs and the bridges over them share the server's one space of names."""
    yield from _doubles([(path, nic.name) for path, nic in nics], f"on server {server}, NIC name")
    taken: dict[str, str] = {}
    for path, nic in nics:
        taken.setdefault(nic.name, path)
    for path, nic in nics:
        if taken[nic.name] != path:
            continue
        bridge = bridge_name(nic)
        if bridge in taken and taken[bridge] != path:
            yield (
                path,
                (
                    f"on server {server}, the bridge over {nic.name} would be called {bridge!r}, a "
                    f"name that {taken[bridge]} takes; rename one of the NICs"
                ),
            )
        taken.setdefault(bridge, path)


def _subnet_mistakes(plan: Plan, nics: list[tuple[str, PlanServer, PlanNic]]) -> Iterator[Mistake]:
    subnet: dict[str, tuple[str, ipaddress.IPv4Network]] = {}
    for path, _, nic in nics:
        where, network = subnet.setdefault(nic.rail, (path, nic.network))
        if nic.network != network:
            yield (
                f"{path}.address",
                f"{nic.address} is outside rail {nic.rail!r}'s subnet {network} (from {where}); "
                "one rail is one subnet",
            )
    yield from _gateway_mistakes(nics)
    rails = list(subnet.items())
    for k, (rail, (path, network)) in enumerate(rails):
        for other, (_, earlier) in rails[:k]:
            if network.overlaps(earlier):
                yield (
                    f"{path}.address",
                    f"rail {rail!r}'s subnet {network} overlaps rail {other!r}'s {earlier}; "
                    "traffic is steered by destination, so rails need subnets of their own",
                )
        for s, server in enumerate(plan.cluster.servers):
            if ipaddress.IPv4Address(server.management) in network:
                yield (
                    f"cluster.servers[{s}].management",
                    f"{server.management} is inside rail {rail!r}'s subnet {network}; management "
                    "traffic must not depend on a rail",
                )


def _gateway_mistakes(nics: list[tuple[str, PlanServer, PlanNic]]) -> Iterator[Mistake]:
    owner = {nic.ip: f"{server.name} {nic.name}" for _, server, nic in nics}
    for path, _, nic in nics:
        if nic.gateway is None:
            continue
        gateway = ipaddress.IPv4Address(nic.gateway)
        if gateway not in nic.network:
            why = f"is outside the subnet {nic.network}"
        elif gateway in (nic.network.network_address, nic.network.broadcast_address):
            why = f"is the network or broadcast address of {nic.network}"
        elif nic.gateway in owner:
            why = f"is the address of {owner[nic.gateway]}, a server of this plan"
        else:
            continue
        yield f"{path}.gateway", f"{gateway} {why}; give a router's address on rail {nic.rail!r}"


def _job_mistakes(job: PlacedJob | ReplayJob, base: Path) -> Iterator[Mistake]:
    if job.workdir is not None and not _exists(Path(job.workdir), Path.is_dir):
        yield "job.workdir", f"{shown(job.workdir)} is no folder; ranks start and import there"
    if job.kind == "replay":
        if not any(_exists(root / job.graph, Path.is_file) for root in (Path.cwd(), base)):
            yield (
                "job.graph",
                f"{shown(job.graph)} is no file (looked in {Path.cwd()} and {base})",
            )
        return
    if job.optimizer.name == "adamw" and job.optimizer.momentum is not None:
        yield "job.optimizer.momentum", "adamw takes none; leave it out, or name sgd"
    module, _, function = job.model.partition(":")
    parts = module.split(".")
    if not function.isidentifier() or not all(part.isidentifier() for part in parts):
        yield (
            "job.model",
            f"{shown(job.model)} is no model path; accepted: package.module:function",
        )
        return
    roots = [job.workdir or str(Path.cwd()), str(base)]
    source = locate_module(module, roots)
    if source is None:
        yield (
            "job.model",
            f"module {shown(module)} was not found; looked in {', '.join(roots)} and sys.path",
        )
        return
    if source.suffix not in importlib.machinery.SOURCE_SUFFIXES:
        yield "job.model", f"{source} is no Python source; name a module that is"
        return
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        yield "job.model", f"{source} cannot be read: {error.strerror}"
        return
    if not re.search(rf"^(?:def\s+{function}\s*\(|{function}\s*[:=])", text, re.M):
        yield "job.model", f"{source} defines no function {shown(function)} at its top level"


def _exists(path: Path, kind: Callable[[Path], bool]) -> bool:
    """Also where the name is longer than any file's can be, or its folder cannot be entered."""
    try:
        return kind(path)
    except OSError:
        return False


def locate_module(module: str, roots: list[str]) -> Path | None:
    """The module's source file, found without importing anything of it."""
    search: list[str] | None = [*roots, *sys.path]
    for part in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, search)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or [])
    return Path(spec.origin) if spec is not None and spec.origin else None
