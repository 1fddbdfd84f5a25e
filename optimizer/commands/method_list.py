"""Lists the methods of one kind, for `optimizer engines` and `optimizer reductions`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placewire.optimizer.commands.answers import answered
from placewire.optimizer.commands.arguments import EXIT_CODES
from placewire.optimizer.commands.clusters import read_cluster
from placewire.optimizer.commands.outcome import DONE, InputError, tell
from placewire.optimizer.registry import BrokenMethodError

if TYPE_CHECKING:
    from placewire.optimizer.problem import Problem
    from placewire.optimizer.registry import Registry

_NAME_COLUMNS = 20
_OURS = "Placewire"


def list_parser(prog: str, description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=prog, description=description, epilog=EXIT_CODES)
    made.add_argument("--json", action="store_true", help="the list as JSON, not as text")
    group = made.add_argument_group("which of them take a graph, and why the others do not")
    group.add_argument("--graph", type=Path, help="a graph file with times")
    group.add_argument("--cluster", type=Path, help="where it is to run, as for `optimizer solve`")
    return made


def print_methods(
    registry: Registry[Any],
    options: argparse.Namespace,
    details: Callable[[Any], Iterable[str]] = lambda method: (),
) -> int:
    """details: further lines about a method."""
    problem = _given_problem(options)
    rows = []
    broken: dict[str, str] = {}
    for name in registry:
        try:
            method = registry.load(name)
        except BrokenMethodError as error:
            broken[name] = str(error)
            continue
        refusal = None if problem is None else method.accepts(problem)
        rows.append((name, method, registry.package(name), refusal))
    if options.json:
        documents = [_document(*row, asked=problem is not None) for row in rows]
        lost = [
            {"name": name, "package": registry.package(name), "broken": why}
            for name, why in broken.items()
        ]
        print(answered({"methods": documents + lost}))
        return DONE
    for name, method, package, refusal in rows:
        source = f"{method.paper}, {method.section}" if method.section else method.paper or _OURS
        lines = [f"from: {source}", *details(method)]
        if package != _OURS.lower():
            lines.append(f"package: {package}")
        if problem is not None:
            lines.append("takes the graph" if refusal is None else f"refuses the graph: {refusal}")
        print(f"{name:{_NAME_COLUMNS - 1}} {method.summary}")
        for line in lines:
            print(f"{'':{_NAME_COLUMNS}}{line}")
    for name, why in broken.items():
        tell(f"{name:{_NAME_COLUMNS - 1}} broken: {why}")
    return DONE


def _given_problem(options: argparse.Namespace) -> Problem | None:
    """None where no graph is given. Raises OSError, InputError, GraphError and InfeasibleError."""
    if (options.graph is None) != (options.cluster is None):
        raise InputError("give both --graph and --cluster, or neither")
    if options.graph is None:
        return None
    from placewire.optimizer.graph.graph_file import load_graph
    from placewire.optimizer.problem import Problem

    return Problem(load_graph(options.graph), read_cluster(options.cluster))


def _document(
    name: str, method: Any, package: str, refusal: object, *, asked: bool
) -> dict[str, Any]:
    said = {
        field.name: value
        for field in fields(method)
        if isinstance(value := getattr(method, field.name), str | None)
    }
    document = {"name": name, "package": package, **said}
    if asked:
        document["refusal"] = None if refusal is None else str(refusal)
    return document
