"""Our flows on our bridges, by `ovs-ofctl`: one bundle per bridge, marked by cookie.

There is no OpenFlow client in the Python bindings. A bundle of adds and strict deletes keeps
foreign flows, which `replace-flows` would remove.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from agent.contract.entries import COOKIE, COOKIE_MASK, FLOW_PRIORITY, Flow
from agent.contract.state import ForeignEntry
from agent.drivers.command import run
from agent.reconcile.steps import EntryStep

_PROTOCOL = ("-O", "OpenFlow13")
# ovs-ofctl prints no priority where it is the default one.
_DEFAULT_PRIORITY = 32768
_COOKIE = re.compile(r"cookie=(0x[0-9a-f]+|0)")
_PRIORITY = re.compile(r"priority=(\d+)")
_DESTINATION = re.compile(r"nw_dst=([0-9./]+)")
_QUEUE = re.compile(r"set_queue:(\d+)")


def read_flows(run_dir: str, bridges: Iterable[str]) -> tuple[list[Flow], list[ForeignEntry]]:
    """Ours, and foreign ones that stand where ours would. Raises EffectError."""
    ours: list[Flow] = []
    foreign: list[ForeignEntry] = []
    for bridge in bridges:
        text = run(
            ["ovs-ofctl", *_PROTOCOL, "--no-stats", "dump-flows", _management(run_dir, bridge)]
        )
        for line in text.splitlines():
            flow = parse_flow(bridge, line)
            if isinstance(flow, Flow):
                ours.append(flow)
            elif flow is not None:
                foreign.append(flow)
    return sorted(ours, key=lambda f: f.key), foreign


def parse_flow(bridge: str, line: str) -> Flow | ForeignEntry | None:
    """One line of `ovs-ofctl --no-stats dump-flows`; None: neither ours nor in our way."""
    cookie, destination = _COOKIE.search(line), _DESTINATION.search(line)
    if destination is None:
        return None
    priority = _PRIORITY.search(line)
    queue = _QUEUE.search(line)
    if cookie is not None and int(cookie[1], 16) & COOKIE_MASK == COOKIE:
        # Ours without a queue was tampered with: shown with a queue that nobody can want.
        return Flow(
            bridge=bridge, destination=destination[1], queue_id=int(queue[1]) if queue else -1
        )
    if (int(priority[1]) if priority else _DEFAULT_PRIORITY) != FLOW_PRIORITY:
        return None
    key = Flow(bridge=bridge, destination=destination[1], queue_id=0).key
    return ForeignEntry(collection="flows", key=key, text=line.strip())


def change_flows(run_dir: str, steps: Sequence[EntryStep]) -> None:
    """One bundle per bridge: all of its steps or none. Raises EffectError."""
    lines: dict[str, list[str]] = defaultdict(list)
    for step in steps:
        flow = step.entry
        assert isinstance(flow, Flow)
        lines[flow.bridge].append(_line(flow, remove=step.after is None))
    for bridge, commands in lines.items():
        run(
            [
                "ovs-ofctl", *_PROTOCOL, "--bundle", "add-flows",
                _management(run_dir, bridge), "-",
            ],
            stdin="\n".join(commands) + "\n",
        )  # fmt: skip


def _line(flow: Flow, *, remove: bool) -> str:
    match = f"table=0,priority={FLOW_PRIORITY},in_port=LOCAL,ip,nw_dst={flow.destination}"
    if remove:
        # With the cookie, so that a foreign flow of the same match stays.
        return f"delete_strict cookie={COOKIE:#x}/{COOKIE_MASK:#x},{match}"
    return f"add cookie={COOKIE:#x},{match},actions=set_queue:{flow.queue_id},NORMAL"


def _management(run_dir: str, bridge: str) -> str:
    return f"unix:{Path(run_dir) / bridge}.mgmt"
