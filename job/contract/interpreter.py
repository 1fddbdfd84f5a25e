"""The interpreter in the words before a script, which may run a module that runs the script."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_WITH_ARGUMENT = ("-W", "-X", "--check-hash-based-pycs")


def interpreter_of(words: Sequence[str]) -> tuple[str, ...]:
    """The words up to `-m`: of `podman run IMAGE python3 -P -m cProfile`, `podman run IMAGE python3
    -P`. Such a command can be asked with `-c`; all words where there is no `-m`."""
    for k, word in enumerate(words):
        if _PYTHON.fullmatch(word) and (end := _module_option(words, k + 1)) is not None:
            return tuple(words[:end])
    return tuple(words)


def runs_modules(words: Sequence[str]) -> bool:
    """Whether the word that follows names a module: these end with an interpreter's `-m`."""
    return tuple(words[-1:]) == ("-m",) and interpreter_of(words) == tuple(words[:-1])


def _module_option(words: Sequence[str], first: int) -> int | None:
    """Where `-m` stands among an interpreter's options, which begin at `first`."""
    k = first
    while k < len(words) and words[k].startswith("-"):
        if words[k] == "-m":
            return k
        k += 2 if words[k] in _WITH_ARGUMENT else 1
    return None
