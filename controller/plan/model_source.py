"""Finds the source file of a job's model, and the names in it, without running any of it."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

# Every name of another module: an import of this may bind anything.
_ALL = "*"


def locate_module(module: str, roots: Sequence[str]) -> Path | None:
    """Returns the module's source file. roots: folders to look in before sys.path."""
    search = [*roots, *sys.path]
    spec = None
    for part in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, search)
        if spec is None:
            return None
        search = _folders(spec, part, search)
    return Path(spec.origin) if spec is not None and spec.origin else None


def _folders(spec: importlib.machinery.ModuleSpec, part: str, search: Sequence[str]) -> list[str]:
    """Where the package's modules are: its own folder, and all folders of this name where it calls
    pkgutil.extend_path, as its text says."""
    own = list(spec.submodule_search_locations or ())
    if not own or not _is_extended(spec.origin):
        return own
    each = (importlib.machinery.PathFinder.find_spec(part, [place]) for place in search)
    others = (folder for one in each if one for folder in one.submodule_search_locations or ())
    return list(dict.fromkeys([*own, *others]))


def _is_extended(origin: str | None) -> bool:
    try:
        text = "" if origin is None else Path(origin).read_text(errors="replace")
    except OSError:
        return False
    return "extend_path" in text or "declare_namespace" in text


def binds(text: str, name: str) -> bool:
    """Whether the source defines or imports the name at its top level. True where it is no Python
    of this version: whoever imports it says so."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return True
    return not {name, _ALL}.isdisjoint(_bound(tree.body))


def _bound(body: Iterable[ast.AST]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name for one in names)
            case ast.Assign() | ast.AnnAssign():
                stored = (one for one in ast.walk(node) if isinstance(one, ast.Name))
                yield from (one.id for one in stored if isinstance(one.ctx, ast.Store))
            case _:
                for branch in ("body", "handlers", "orelse", "finalbody"):
                    yield from _bound(getattr(node, branch, ()))
