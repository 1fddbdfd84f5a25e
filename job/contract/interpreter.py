"""The interpreter in the words before a script, which may run a module that runs the script."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PYTHON = re.compile(r"(?:.*/)?(?:python[\w.-]*|pypy[\d.]*)")
# In one word there may be options without an argument, and then one whose argument is the rest of
# the word, or else the next one: -Im, -mcProfile, -X dev.
_MODULE = re.compile(r"-([^-cmWX]*)m(.*)")
_ARGUMENT_NEXT = re.compile(r"-[^-cmWX]*[WX]|--check-hash-based-pycs")


def interpreter_of(words: Sequence[str]) -> tuple[str, ...]:
    """The words up to `-m`: of `podman run IMAGE python3 -Im cProfile`, `podman run IMAGE python3
    -I`. Such a command can be asked with `-c`; all words where there is no `-m`."""
    if (found := _module_option(words)) is None:
        return tuple(words)
    k, beside, _ = found
    return (*words[:k], *([f"-{beside}"] if beside else []))


def runs_modules(words: Sequence[str]) -> bool:
    """Whether the word that follows names a module: these end with an interpreter's `-m`."""
    found = _module_option(words)
    return found is not None and found[0] == len(words) - 1 and not found[2]


def _module_option(words: Sequence[str]) -> tuple[int, str, str] | None:
    """Which word of an interpreter's options has its `m`, the letters before it, and what follows
    it there."""
    for first, word in enumerate(words):
        k = first + 1
        while _PYTHON.fullmatch(word) and k < len(words) and words[k].startswith("-"):
            if option := _MODULE.fullmatch(words[k]):
                return k, option[1], option[2]
            k += 2 if _ARGUMENT_NEXT.fullmatch(words[k]) else 1
    return None
