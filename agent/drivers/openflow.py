"""Reads and changes our flows with `ovs-ofctl`: one bundle per bridge, flows marked by cookie.

Open vSwitch's Python bindings have no OpenFlow client. A bundle of adds and strict deletes keeps
foreign flows, which `replace-flows` would remove.

An add alone overwrites a flow of the same match and priority, whosever it is, and Open vSwitch
checks for overlaps only where no flow has the very same match. So each add comes with a trial in
the same bundle: our flow is deleted, then a flow whose match is never the same (it also looks at
metadata, which is 0 in every packet) is added with that check, and deleted again. Where a foreign
flow of the same priority would match any of these packets, the switch refuses the whole bundle and
does nothing of it. The switch takes a bundle in as one, so there is no moment in between.

OpenFlow cannot match a packet's length, and tc filters are not asked about a packet that has its
class from set_queue. So two flows handle short packets. The first checks the length of every packet
that could be an acknowledgement, notes the result in register 0 and starts the lookup again; the
second takes the packets found to be short. Bits of the register: 0 the packet is long, 1 checked.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from placewire.agent.contract.entries import (
    COOKIE,
    COOKIE_MASK,
    FLOW_PRIORITY,
    LENGTH_FLOW_PRIORITY,
    SHORT_FLOW_PRIORITY,
    SHORT_PACKET_BYTES,
    Flow,
)
from placewire.agent.contract.state import ForeignEntry
from placewire.agent.drivers.command import run
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.foreign_kinds import OTHER_FLOWS
from placewire.agent.reconcile.steps import EntryStep

_PROTOCOL = ("-O", "OpenFlow13")
# Spoken only where somebody does not let a bridge speak the other. They can read and remove flows,
# but not all of them can change several as one.
_OTHER_PROTOCOLS = ("-O", "OpenFlow10,OpenFlow11,OpenFlow12,OpenFlow14,OpenFlow15")
_NOT_ALLOWED = "version negotiation failed"
_OUR_COOKIE = f"cookie={COOKIE:#x}/{COOKIE_MASK:#x}"
_TRIAL_MATCH = f"metadata=0/{COOKIE:#x}"
_OVERLAP = "OFPFMFC_OVERLAP"
# ovs-ofctl prints no priority where it is the default one.
_DEFAULT_PRIORITY = 32768
_COOKIE = re.compile(r"cookie=(0x[0-9a-f]+|0)")
_PRIORITY = re.compile(r"priority=(\d+)")
_DESTINATION = re.compile(r"nw_dst=([0-9./]+)")
_QUEUE = re.compile(r"set_queue:(\d+)")
# Flows may send their packets to these: by kind, the word before a name, and where that stands.
_COUNTED = {
    "group": ("group_id", re.compile(r"^ *group_id=(\w+),", re.MULTILINE)),
    "meter": ("meter", re.compile(r"^ *meter=(\w+) ", re.MULTILINE)),
}
_TABLE = re.compile(r"\btable=(\d+)")
# What Open vSwitch gives a bridge that has no controller; without statistics, it prints no cookie
# that is 0.
_OF_A_NEW_BRIDGE = re.compile(r"(?:cookie=0(?:x0)?, )?priority=0 actions=NORMAL")
_FOR_ALL = "table=0,priority=0"
# Its Ethernet header included.
_LONGEST_SHORT_BYTES = SHORT_PACKET_BYTES - 1 + 14
# Not with PSH: the short end of a piece of data must stay behind the data before it
# (agent/drivers/traffic_control.py says why).
_LENGTH_MATCH = f"table=0,priority={LENGTH_FLOW_PRIORITY},in_port=LOCAL,tcp,tcp_flags=-psh,reg0=0/2"
_CHECK = f"check_pkt_larger({_LONGEST_SHORT_BYTES})->NXM_NX_REG0[0]"
_SHORT_MATCH = f"table=0,priority={SHORT_FLOW_PRIORITY},in_port=LOCAL,tcp,reg0=2/3"
_SHORT_PRIORITIES = (SHORT_FLOW_PRIORITY, LENGTH_FLOW_PRIORITY)


class Flows(NamedTuple):
    """deaf: the bridges on which somebody removed the flow that a new bridge has."""

    ours: Sequence[Flow]
    foreign: Sequence[ForeignEntry]
    deaf: Collection[str]


def read_flows(run_dir: str, bridges: Iterable[str]) -> Flows:
    """Our flows, and those of others on the same bridges, with their groups and meters. Raises
    EffectError."""
    ours: list[Flow] = []
    foreign: list[ForeignEntry] = []
    deaf = set()
    for bridge in bridges:
        management = _management(run_dir, bridge)
        protocol, text = _dump(management)
        found, strangers = parse_flows(bridge, text, management, protocol)
        ours += found
        foreign += [*strangers, *_groups_and_meters(bridge, management)]
        if not _forwards(text):
            deaf.add(bridge)
    return Flows(sorted(ours, key=lambda f: f.key), foreign, deaf)


def parse_flows(
    bridge: str, text: str, management: str = "", protocol: Sequence[str] = _PROTOCOL
) -> tuple[list[Flow], list[ForeignEntry]]:
    """Our flows, and those of others; the key of one in the place of ours is that of ours.

    text: of `ovs-ofctl --no-stats dump-flows`. management: how ovs-ofctl is to call the bridge.
    protocol: the words by which it speaks with that.
    """
    ours: list[Flow] = []
    foreign: list[ForeignEntry] = []
    short: dict[int, str] = {}
    for shown in text.splitlines():
        # A flag that each flow has in some versions of OpenFlow.
        line = shown.strip().replace("reset_counts ", "")
        if "actions=" not in line or _OF_A_NEW_BRIDGE.fullmatch(line):
            continue
        destination, priority = _DESTINATION.search(line), _priority(line)
        # The two flows for short packets are the only ones of ours that match a register.
        is_short = destination is None and priority in _SHORT_PRIORITIES and "reg0=" in line
        if not _is_ours(line):
            in_our_place = is_short or (destination is not None and priority == FLOW_PRIORITY)
            place = Flow(bridge=bridge, destination=destination and destination[1], queue_id=0)
            foreign.append(
                ForeignEntry(
                    collection="flows" if in_our_place else OTHER_FLOWS,
                    key=place.key if in_our_place else f"{bridge} {_strict_match(line)}",
                    text=f"flow {line}",
                    on=bridge,
                    remedy=f"ovs-ofctl {' '.join(protocol)} --strict del-flows "
                    f"{quote(management or bridge)} {quote(_strict_match(line))}",
                )
            )
        elif is_short:
            short[priority] = line
        elif destination is not None:
            # One of ours that lost its queue gets queue -1, which differs from every desired one.
            ours.append(Flow(bridge=bridge, destination=destination[1], queue_id=_queue_id(line)))
    if short:
        whole = _CHECK in short.get(LENGTH_FLOW_PRIORITY, "")
        queue_id = _queue_id(short.get(SHORT_FLOW_PRIORITY, "")) if whole else -1
        ours.append(Flow(bridge=bridge, destination=None, queue_id=queue_id))
    return ours, foreign


def _groups_and_meters(bridge: str, management: str) -> list[ForeignEntry]:
    """We make none. A bridge that somebody does not let speak our OpenFlow tells none."""
    texts = []
    for kind in _COUNTED:
        try:
            texts.append(run(["ovs-ofctl", *_PROTOCOL, f"dump-{kind}s", management]))
        except EffectError as error:
            if _NOT_ALLOWED not in str(error):
                raise
    return parse_groups_and_meters(bridge, "\n".join(texts), management)


def parse_groups_and_meters(bridge: str, text: str, management: str = "") -> list[ForeignEntry]:
    """text: of `ovs-ofctl dump-groups` and `dump-meters`."""
    return [
        ForeignEntry(
            collection=OTHER_FLOWS,
            key=f"{bridge} {kind} {name}",
            text=f"{kind} {name} of its flows",
            on=bridge,
            remedy=f"ovs-ofctl {' '.join(_PROTOCOL)} del-{kind}s {quote(management or bridge)} "
            f"{word}={name}",
        )
        for kind, (word, found) in _COUNTED.items()
        for name in found.findall(text)
    ]


def _strict_match(line: str) -> str:
    """The words that name this one flow to `ovs-ofctl --strict del-flows`, with its cookie."""
    head = line.partition("actions=")[0].split()
    cookie, table = _COOKIE.search(line), _TABLE.search(" ".join(head))
    # A flow that matches everything with the default priority has no words of a match.
    match = [head[-1]] if head and not head[-1].endswith(",") else []
    named = [f"cookie={cookie[1] if cookie else 0}/-1", f"table={table[1] if table else 0}"]
    return ",".join([*named, *match])


def _queue_id(line: str) -> int:
    """-1 where the flow sets no queue."""
    queue = _QUEUE.search(line)
    return int(queue[1]) if queue else -1


def change_flows(run_dir: str, steps: Sequence[EntryStep]) -> None:
    """Does all steps of a bridge or none of them. Raises EffectError, which names the flow where a
    foreign one has come into the place of ours since the last read."""
    lines: dict[str, list[str]] = defaultdict(list)
    removed: dict[str, list[Flow]] = defaultdict(list)
    adding = set()
    for step in steps:
        flow = step.entry
        assert isinstance(flow, Flow)
        lines[flow.bridge] += _removing(flow) if step.after is None else _adding(flow)
        if step.after is None:
            removed[flow.bridge].append(flow)
        else:
            adding.add(flow.bridge)
    for bridge, commands in lines.items():
        management = _management(run_dir, bridge)
        bundle = ["ovs-ofctl", *_PROTOCOL, "--bundle", "add-flows", management, "-"]
        try:
            run(bundle, stdin="\n".join(commands) + "\n")
        except EffectError as error:
            if _NOT_ALLOWED in str(error):
                if bridge in adding:
                    raise EffectError(
                        f"bridge {bridge}: somebody does not let it speak OpenFlow 1.3, without "
                        "which its flows cannot be changed as one; let it (ovs-vsctl clear bridge "
                        f"{quote(bridge)} protocols)"
                    ) from error
                _remove_one_by_one(management, removed[bridge])
                continue
            if _OVERLAP not in str(error):
                raise
            raise EffectError(
                f"bridge {bridge}: flows that are not ours match packets of ours at one priority: "
                f"{'; '.join(_foreign_of_our_priorities(management))}; remove them, or give them "
                "another priority"
            ) from error


def forward_again(run_dir: str, bridges: Iterable[str]) -> None:
    """Gives those of these bridges that have no flow for all packets the one of a new bridge again.
    Raises EffectError, also where a flow of others has come into its place meanwhile."""
    for bridge in bridges:
        management = _management(run_dir, bridge)
        if _forwards(_dump(management)[1]):
            continue
        trial = f"{_FOR_ALL},{_TRIAL_MATCH}"
        commands = (
            f"add check_overlap,cookie={COOKIE:#x},{trial},actions=drop",
            _delete(trial),
            f"add {_FOR_ALL},actions=NORMAL",
        )
        bundle = ["ovs-ofctl", *_PROTOCOL, "--bundle", "add-flows", management, "-"]
        run(bundle, stdin="\n".join(commands) + "\n")


def _forwards(text: str) -> bool:
    """Whether there is a flow of the lowest priority for all packets, whoever made it: without one,
    a bridge passes nothing that no other flow names. text: of `ovs-ofctl --no-stats dump-flows`."""
    heads = (line.partition("actions=")[0] for line in text.splitlines() if "actions=" in line)
    return any(head.split()[-1:] == ["priority=0"] and not _TABLE.search(head) for head in heads)


def _remove_one_by_one(management: str, flows: Sequence[Flow]) -> None:
    """Removes our flows in any version of OpenFlow. Raises EffectError."""
    marked = [f"{_OUR_COOKIE},{match}\n" for flow in flows for match, _ in _rules(flow)]
    words = ["ovs-ofctl", *_OTHER_PROTOCOLS, "--strict", "del-flows", management, "-"]
    run(words, stdin="".join(marked))


def _adding(flow: Flow) -> list[str]:
    ours, rules = f"cookie={COOKIE:#x}", _rules(flow)
    trials = [f"{match},{_TRIAL_MATCH}" for match, _ in rules]
    return [
        *_removing(flow),
        *(f"add check_overlap,{ours},{trial},actions=drop" for trial in trials),
        *(_delete(trial) for trial in trials),
        *(f"add {ours},{match},actions={actions}" for match, actions in rules),
    ]


def _removing(flow: Flow) -> list[str]:
    return [_delete(match) for match, _ in _rules(flow)]


def _delete(match: str) -> str:
    """Names the cookie too, so that a foreign flow of the same match stays."""
    return f"delete_strict {_OUR_COOKIE},{match}"


def _rules(flow: Flow) -> list[tuple[str, str]]:
    """(match, actions) of each OpenFlow flow that this entry takes."""
    queue = f"set_queue:{flow.queue_id},NORMAL"
    if flow.destination is None:
        again = f"load:1->NXM_NX_REG0[1],{_CHECK},resubmit(,0)"
        return [(_SHORT_MATCH, queue), (_LENGTH_MATCH, again)]
    match = f"table=0,priority={FLOW_PRIORITY},in_port=LOCAL,ip,nw_dst={flow.destination}"
    return [(match, queue)]


def _foreign_of_our_priorities(management: str) -> list[str]:
    ours = {FLOW_PRIORITY, *_SHORT_PRIORITIES}
    lines = _dump(management)[1].splitlines()
    return [line.strip() for line in lines if _priority(line) in ours and not _is_ours(line)]


def _dump(management: str) -> tuple[Sequence[str], str]:
    """The words for the version of OpenFlow that the bridge speaks, and its flows."""

    def dumped(protocol: Sequence[str]) -> str:
        return run(["ovs-ofctl", *protocol, "--no-stats", "dump-flows", management])

    try:
        return _PROTOCOL, dumped(_PROTOCOL)
    except EffectError as error:
        if _NOT_ALLOWED not in str(error):
            raise
        return _OTHER_PROTOCOLS, dumped(_OTHER_PROTOCOLS)


def _priority(line: str) -> int:
    priority = _PRIORITY.search(line)
    return int(priority[1]) if priority else _DEFAULT_PRIORITY


def _is_ours(line: str) -> bool:
    cookie = _COOKIE.search(line)
    return cookie is not None and int(cookie[1], 16) & COOKIE_MASK == COOKIE


def _management(run_dir: str, bridge: str) -> str:
    return f"unix:{Path(run_dir) / bridge}.mgmt"
