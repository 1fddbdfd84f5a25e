"""Tab completes commands in a bash that was set up as the guide says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

# bash does this at Tab, for a line whose cursor is at its end.
_TAB = """
eval "$(%(python)s -m argcomplete.scripts.register_python_argcomplete controller optimizer agent)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
read -ra COMP_WORDS <<<"$1"
[[ $1 == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
completer=$(complete -p "${COMP_WORDS[0]}" | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
$completer "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%%s\\n' "${COMPREPLY[@]}"
"""


def completed(line: str, folder: Path) -> set[str]:
    """The words that Tab offers. The commands run by the present interpreter, whatever is
    installed."""
    for program, module in (
        ("controller", "placewire.controller.cli"), ("optimizer", "placewire.optimizer.cli"),
        ("agent", "placewire.agent.main"),
    ):  # fmt: skip
        file = folder / program
        file.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        file.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", _TAB % {"python": sys.executable}, "bash", line],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {word.strip() for word in done.stdout.splitlines()} - {""}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("controller ap", {"apply"}),
        ("controller lab ", {"up", "down", "list", "-h", "--help"}),
        ("controller apply --n", {"--network-only", "--no-lab", "--no-measurement"}),
        ("agent do", {"doctor"}),
        ("optimizer so", {"solve"}),
        ("optimizer solve graph.json --engine h", {"heft", "hrl", "hsdag"}),
    ],
)
def test_tab_completes(line: str, words: set[str], tmp_path: Path) -> None:
    assert completed(line, tmp_path) == words
