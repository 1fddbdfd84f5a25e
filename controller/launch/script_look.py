"""Asks a script's own interpreter, before any network is changed, whether it can run the script.

Only that interpreter can tell: it may be a container's, which has other files and begins in another
folder.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

LONGEST_SECONDS = 60
# Defines look(script, words, environment), for a program on the script's server. It answers with
# what `problem_in` reads. torchrun is a part of torch: who lacks that could not run the script.
LOOK = f"""
import json, os, signal, subprocess
INSIDE = '''
import importlib.util as u, json, os, sys
found = os.path.isfile(sys.argv[1]), u.find_spec("torch") is not None
print(json.dumps(dict(zip(("script", "torch"), found))))
'''
def interpreter(words):  # of `python3 -m cProfile`, python3
    for k, word in enumerate(words[1:], 1):
        if word == "-m" and os.path.basename(words[k - 1]).startswith("python"):
            return words[:k]
    return words
def look(script, words, environment):
    try:
        asked = subprocess.Popen(
            [*interpreter(words), "-c", INSIDE, script], env={{**os.environ, **environment}},
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
# Prints what look() answers to the one argument that `asking` makes.
PROGRAM = f"{LOOK}\nimport sys\nprint(json.dumps(look(**json.loads(sys.argv[1]))))\n"


def asking(script: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
    """environment: what is added to that of the program that asks."""
    return json.dumps({"script": script, "words": [*words], "environment": {**environment}})


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
