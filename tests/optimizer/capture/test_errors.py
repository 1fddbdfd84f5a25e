"""Does an error of a capture name the line of the user, and that of the package it calls?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from placewire.optimizer.capture.errors import user_location


def function(file: Path, text: str, **known: object) -> Callable[[], Any]:
    """f of this file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    there: dict[str, Any] = dict(known)
    exec(compile(text, str(file), "exec"), there)
    made: Callable[[], Any] = there["f"]
    return made


def location(failing: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as raised:
        failing()
    return user_location(raised.value)


def test_the_innermost_lines_of_the_user_and_of_a_package_are_named(tmp_path: Path) -> None:
    mine, packages = tmp_path / "mine.py", tmp_path / "site-packages"
    text = "def f():\n    return torch.zeros(2) @ torch.zeros(3)\n"
    inner = function(packages / "hub" / "inner.py", text, torch=torch)
    hub = function(packages / "hub" / "net.py", "def f():\n    return g()\n", g=inner)
    outer = function(mine, "def f():\n    return 1 + g()\n", g=hub)
    assert location(outer) == (
        f"{mine}:2: `return 1 + g()`, in hub/inner.py:2: `return torch.zeros(2) @ torch.zeros(3)`"
    )


def test_of_a_package_that_calls_the_user_only_the_user_s_line_is_named(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    inner = function(mine, "def f():\n    raise RuntimeError\n")
    hub = function(tmp_path / "site-packages" / "hub.py", "def f():\n    g()\n", g=inner)
    assert location(hub) == f"{mine}:2: `raise RuntimeError`"
