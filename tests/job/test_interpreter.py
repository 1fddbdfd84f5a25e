"""Which of the words before a script are the interpreter."""

from __future__ import annotations

import pytest

from placewire.job.contract.interpreter import interpreter_of, runs_modules


@pytest.mark.parametrize(
    ("words", "interpreter", "is_module"),
    [
        ("python3", "python3", False),
        ("python3 -m", "python3", True),
        ("/srv/venv/bin/python3.11 -P -X dev -m", "/srv/venv/bin/python3.11 -P -X dev", True),
        ("python3 -W m -IXm -m", "python3 -W m -IXm", True),
        ("python3 -Im", "python3 -I", True),
        ("python3 -u -Pm cProfile -o out", "python3 -u -P", False),
        ("python3 -ImcProfile", "python3 -I", False),
        ("python3.13t -m", "python3.13t", True),
        ("env A=1 /usr/bin/python3-dbg -m cProfile", "env A=1 /usr/bin/python3-dbg", False),
        ("pypy3 -m", "pypy3", True),
        ("/opt/pypy/bin/pypy3.10 -um", "/opt/pypy/bin/pypy3.10 -u", True),
        ("python -m cProfile -o out", "python", False),
        ("podman run -m 4g image python3 -m", "podman run -m 4g image python3", True),
        ("podman run -m 4g image python3", "podman run -m 4g image python3", False),
        ("nice -n 5 own-interpreter -m", "nice -n 5 own-interpreter -m", False),
        ("apptainer exec /srv/python python3 -u", "apptainer exec /srv/python python3 -u", False),
    ],
)
def test_the_interpreter_ends_before_its_module(
    words: str, interpreter: str, is_module: bool
) -> None:
    assert interpreter_of(words.split()) == tuple(interpreter.split())
    assert runs_modules(words.split()) == is_module
