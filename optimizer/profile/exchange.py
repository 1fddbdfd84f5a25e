"""A profile that another machine asks for: what it knows comes in, what was found goes back.

Both are JSON, on standard input and output: nothing is left behind on this machine.
    in    {file name: a measured profile, as --cache keeps it}
    out   {"graph": a graph file's content, "profiles": those that were not known}
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from placewire.optimizer.graph.graph_file import graph_to_json
from placewire.optimizer.graph.json_file import read_json, write_json
from placewire.optimizer.graph.operator_graph import GraphError, OperatorGraph

_PROFILE_NAME = re.compile(r"profile-[0-9a-f]{16}\.json")


def exchange(asked: int, answered: int, measure: Callable[[Path], OperatorGraph]) -> None:
    """asked, answered: descriptors that are read to their end and written. measure: given a folder
    of measured profiles, adds to it what it measures.

    Raises GraphError where what was asked is not as above.
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
    """Raises GraphError where these are no profiles under names of their own: a name becomes a
    file's."""
    if not isinstance(documents, dict):
        raise GraphError("profiles are an object of file names and profiles")
    for name in documents:
        if not _PROFILE_NAME.fullmatch(name):
            raise GraphError(f"{name[:80]!r} is no name of a profile")
    return documents


def own_output() -> int:
    """A descriptor of standard output for the answer alone: whatever else prints there from now on
    (a model, a library) goes to standard error."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return descriptor
