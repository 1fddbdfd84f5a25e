"""Runs a tool of the system with a time limit; an error has what the tool said.

Names, labels and aliases that others gave may hold any byte, and the tools print them raw. Such a
byte must neither keep us from reading the rest nor end a line of ours, so Python's escape, such as
`\\x1b`, stands for it wherever it is shown or kept.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from typing import Any

from placewire.agent.reconcile.effects import EffectError, NoAnswerError

TIMEOUT_SECONDS = 20.0
# All control characters but tab and newline, and the two line separators.
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_ESCAPED = re.compile(r"\\(.)")


def run(command: Sequence[str], stdin: str | None = None) -> str:
    """Returns the tool's standard output, as `shown`. Raises EffectError, of Open vSwitch's tools
    NoAnswerError where the time is up."""
    try:
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=TIMEOUT_SECONDS,
        )
    except FileNotFoundError as error:
        raise EffectError(f"{command[0]} is not installed on this server") from error
    except PermissionError as error:
        # Also raised where the tool is in no folder of PATH and one of them may not be searched.
        raise EffectError(f"{command[0]} is not there, or this user may not run it") from error
    except subprocess.TimeoutExpired as error:
        # One NIC's driver can hold up `ip`, `tc` or `ethtool`. That says nothing of the switch.
        kind = NoAnswerError if command[0].startswith("ovs-") else EffectError
        raise kind(f"{' '.join(command)}: no answer in {TIMEOUT_SECONDS:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise EffectError(f"{' '.join(command)}: {said or f'exit {done.returncode}'}")
    return shown(done.stdout)


def shown(raw: str | bytes) -> str:
    """The text with escapes for control characters and for bytes that are no UTF-8."""
    text = raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else raw
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def parsed(text: str) -> Any:
    """The JSON that `run` returned. The escapes in its strings stay text. Raises ValueError."""
    return json.loads(_ESCAPED.sub(_as_json, text))


def _as_json(escape: re.Match[str]) -> str:
    if escape[1] in '"\\/nt':
        return escape[0]
    # iproute2 writes no escape with `u`, and some versions of it escape an apostrophe.
    return "'" if escape[1] == "'" else f"\\\\{escape[1]}"
