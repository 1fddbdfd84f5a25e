"""Serves a profile to another machine over standard input and output, both in JSON.

Nothing is left behind on this machine.
    in    {file name: a measured profile that the other machine has, as --cache keeps it}
    out   {"graph": a graph file's content, "profiles": the profiles that it did not have}
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from placewire.optimizer.graph.checked_notes import require_shallow
from placewire.optimizer.graph.graph_file import graph_to_json
from placewire.optimizer.graph.json_file import read_json, write_json
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph

_PROFILE_NAME = re.compile(r"profile-[0-9a-f]{16}\.json")


def exchange(asked: int, answered: int, measure: Callable[[Path], OperatorGraph]) -> None:
    """asked: a descriptor that is read to its end. answered: a descriptor for the answer. measure:
    takes a folder of measured profiles, and adds to it what it measures.

    Raises GraphError where the request has not the form above.
    """
    with open(asked, "rb", closefd=False) as stream:
        known = json.loads(stream.read() or b"{}")
    require_profiles(known)
    with tempfile.TemporaryDirectory(prefix="placewire-profile-") as name:
        folder = Path(name)
        for file, document in known.items():
            write_json(folder / file, document)
        graph = measure(folder)
        found = {file.name: read_json(file) for file in sorted(folder.glob("profile-*.json"))}
    added = {file: document for file, document in found.items() if document != known.get(file)}
    answer = json.dumps({"graph": graph_to_json(graph), "profiles": added}, allow_nan=False)
    with open(answered, "wb", closefd=False) as stream:
        stream.write(answer.encode())


def require_profiles(documents: Any) -> Mapping[str, Any]:
    """Raises GraphError for a name that a file of profiles cannot have, because names become
    files, and for what is no profile."""
    if not isinstance(documents, dict):
        raise GraphError("profiles must be an object of file names and profiles")
    for name, document in documents.items():
        if not _PROFILE_NAME.fullmatch(name):
            raise GraphError(f"{name[:80]!r} is not the name of a profile")
        if not isinstance(document, dict):
            raise GraphError(f"{name} is no profile")
        require_shallow(name, document)
    return documents


def own_output() -> int:
    """Returns a descriptor of standard output for the answer alone; what a model or a library
    prints from now on goes to standard error."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor
