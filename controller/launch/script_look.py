"""Asks a script's own interpreter, before any network is changed, whether it can run the script.

Only that interpreter can tell: it may be a container's, which has other files and begins in another
folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from placewire.job.contract.interpreter import interpreter_of, runs_modules

LONGEST_SECONDS = 60
# A script does not find its peers without these variables of its environment.
TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Defines look(script, is_module, words, environment), for a program on the script's server. It
# answers with what `problem_in` reads. torchrun is a part of torch: who lacks that could not run
# the script. No module is imported, not even a package to look into: that would run its code, and
# find_spec("train.py") of importlib.util all of train.py.
LOOK = f"""
import json, os, signal, subprocess
INSIDE = '''
import sys
# A script in another folder does not import from this one, which may have a types.py.
searched, sys.path = sys.path, [path for path in sys.path if path]
import importlib.machinery as m, json, os
sys.path = searched
def found(module):
    package, _, name = module.rpartition(".")
    path = folders(package) if package else None
    if package and not path:
        return None
    for finder in sys.meta_path:
        # By its whole name it would ask what was imported for the path of a namespace package.
        spec = finder.find_spec(name if finder is m.PathFinder else module, path)
        if spec is not None:
            return spec
    return None
def folders(package):
    spec = found(package)
    own = list(spec and spec.submodule_search_locations or [])
    if own and is_extended(spec):
        above, _, name = package.rpartition(".")
        for place in folders(above) if above else sys.path:
            other = m.PathFinder.find_spec(name, [place])
            more = other and other.submodule_search_locations or []
            own += [folder for folder in more if folder not in own]
    return own
def is_extended(spec):
    # By its text, as pkgutil.extend_path would be called by the package's own code.
    try:
        with open(spec.origin, errors="replace") as source:
            text = source.read()
    except (OSError, TypeError):
        return False
    return "extend_path" in text or "declare_namespace" in text
def runs(module):
    spec = found(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = found(module + ".__main__")
    return spec is not None
script = runs(sys.argv[1]) if sys.argv[2:] == ["module"] else os.path.isfile(sys.argv[1])
untold = [name for name in {TOLD} if name not in os.environ]
answers = script, found("torch") is not None, untold
print(json.dumps(dict(zip(("script", "torch", "untold"), answers))))
'''
def look(script, is_module, words, environment):
    try:
        asked = subprocess.Popen(
            [*words, "-c", INSIDE, script, *["module"][:is_module]],
            env={{**os.environ, **environment, **dict.fromkeys({TOLD}, "0")}},
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            errors="replace", start_new_session=True,
        )
    except OSError as error:
        return {{"error": str(error)}}
    try:
        out, err = asked.communicate(timeout={LONGEST_SECONDS})
    except subprocess.TimeoutExpired as error:
        os.killpg(asked.pid, signal.SIGKILL)  # What it started, as a container, ends with it.
        asked.communicate()
        return {{"error": str(error)}}
    said = [line for line in out.splitlines() if line.startswith('{{"script"')]
    if asked.returncode or not said:
        lines = (err or out).strip().splitlines()
        return {{"error": lines[-1] if lines else f"exit {{asked.returncode}}"}}
    return json.loads(said[-1])
"""
# Prints what look() answers to the question on its standard input, in JSON: an argument would show
# the environment to everybody on that machine.
PROGRAM = f"{LOOK}\nimport sys\nprint(json.dumps(look(**json.load(sys.stdin))))\n"


def question(
    script: str, words: Sequence[str], environment: Mapping[str, str]
) -> Mapping[str, Any]:
    """The arguments of look(). environment: what is added to that of the program that asks."""
    return {
        "script": script,
        "is_module": runs_modules(words),
        "words": list(interpreter_of(words)),
        "environment": dict(environment),
    }


def problem_in(answer: Any, script: str, words: Sequence[str]) -> tuple[str, str] | None:
    """Returns (what is wrong, what to do)."""
    answer = answer if isinstance(answer, dict) else {"error": f"it answers {answer!r}"}
    shown = shlex.join(words)
    if "error" in answer:
        return (
            f"{shown!r} runs no Python there: {str(answer['error'])[-300:]}",
            "look at job.python: an interpreter, or a command that ends with one, which the job's "
            "user can run without privileges",
        )
    if untold := _untold(answer.get("untold")):
        return (
            f"{shown!r} does not pass on {', '.join(untold)}: the script would not find its peers",
            "have the command pass on its whole environment, as `--env-host` does of podman, or "
            "name each variable, as `--setenv=RANK` does of systemd-nspawn",
        )
    if not answer.get("script") and runs_modules(words):
        return (
            f"module {script!r} is not found there by {shown!r}, or cannot be run as a program",
            "give its name with dots in job.script, and its folder in job.workdir or in PYTHONPATH "
            "in job.env; a package needs a __main__.py",
        )
    if not answer.get("script"):
        return (
            f"script {script!r} is not found there by {shown!r}",
            "give job.script as that command sees it: a container has other files, and may begin "
            "in another folder than job.workdir",
        )
    if not answer.get("torch"):
        return (
            f"{shown!r} has no torch there",
            "install torch for it, or name another interpreter in job.python",
        )
    return None


def _untold(said: Any) -> list[str]:
    return [name for name in TOLD if name in said] if isinstance(said, list) else []
