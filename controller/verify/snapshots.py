"""Takes snapshots of a plan's servers by the oracle's program, which runs there, and compares them.

No agent is asked, and no code of the agent's is used: the oracle shows what agents overlook.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewire.controller.errors import PlacewireError, UsageError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.plan import Plan
from placewire.oracle.differences import NotComparableError, differences
from placewire.oracle.namespace import SOURCE

_VERSION = 1
_BY_HAND = (
    "by hand, as root on that server: `/opt/placewire/.venv/bin/python -m placewire.oracle take "
    "--out before.json`, and later `... compare before.json`"
)


async def take_all(plan: Plan, launcher: Launcher) -> dict[str, Any]:
    """By server, its snapshot. Raises UsageError where one cannot be taken; it says how to take it
    by hand."""
    source = SOURCE.read_bytes()
    names = [server.name for server in plan.cluster.servers]
    taken = await asyncio.gather(*(_take(name, launcher, source) for name in names))
    return dict(zip(names, taken, strict=True))


async def _take(server: str, launcher: Launcher, source: bytes) -> Any:
    try:
        ended = await launcher.read(server, source)
    except PlacewireError as error:
        remedy = f"{error.remedy}; or {_BY_HAND}" if error.remedy else _BY_HAND
        raise UsageError(error.what, where=error.where or server, remedy=remedy) from error
    except OSError as error:
        raise UsageError(f"no snapshot: {error}", where=server, remedy=_BY_HAND) from error
    if ended.status != 0:
        said = "; ".join(ended.tail) or f"the program ended with {ended.status}"
        raise UsageError(f"no snapshot: {said}", where=server, remedy=_BY_HAND)
    try:
        return json.loads(ended.output)
    except (ValueError, RecursionError) as error:
        what = f"no snapshot: what came back is no JSON ({error})"
        raise UsageError(what, where=server, remedy=_BY_HAND) from error


def write(file: Path, plan_name: str, taken: Mapping[str, Any]) -> None:
    """Raises UsageError."""
    document = {
        "version": _VERSION,
        "plan": plan_name,
        "taken_unix": time.time(),
        "servers": dict(taken),
    }
    try:
        text = json.dumps(document, indent=1, sort_keys=True)
        with file.open("x", encoding="utf-8") as opened:
            try:
                opened.write(text)
                opened.flush()
            except BaseException:  # A half would keep the place of a whole one.
                file.unlink(missing_ok=True)
                raise
    except (OSError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file}: not written: {why}") from error


def read(file: Path) -> dict[str, Any]:
    """By server, its snapshot in the file. Raises UsageError."""
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: cannot be read: {error}") from error
    servers = document.get("servers") if isinstance(document, dict) else None
    if not isinstance(servers, dict) or document.get("version") != _VERSION:
        raise UsageError(
            f"{file}: is no file that `controller verify PLAN --snapshot FILE` wrote",
            remedy="`python -m placewire.oracle compare` compares snapshots of single servers",
        )
    return servers


def differing(
    file: Path, before: Mapping[str, Any], now: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """By server on which something differs, a sentence for each. Raises UsageError where a snapshot
    is of another version."""
    found: dict[str, tuple[str, ...]] = {}
    for server in sorted(before.keys() | now.keys()):
        if server not in before:
            found[server] = ("is in the plan, and not in the snapshot",)
        elif server not in now:
            found[server] = ("is in the snapshot, and not in the plan: not looked at",)
        else:
            try:
                sentences = differences(before[server], now[server])
            except NotComparableError as error:
                raise UsageError(f"{file}: {error}", where=server) from error
            except RecursionError as error:
                what = "a snapshot of it is nested deeper than one of any server"
                raise UsageError(f"{file}: {what}", where=server, remedy=_BY_HAND) from error
            if sentences:
                found[server] = tuple(sentences)
    return found
