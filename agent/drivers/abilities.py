"""Finds out what the kernel's traffic control and the NICs can do, without touching any NIC.

Kinds of queueing disciplines and classifiers are tried on the loopback interface of a network
namespace made for the question; the namespace goes with its last process, however that ends.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence

from placewire.agent.contract.capabilities import (
    CLASSFUL_QDISC,
    CLASSIFIERS,
    LEAF_QDISCS,
    TrafficControl,
)
from placewire.agent.drivers.command import TIMEOUT_SECONDS, run
from placewire.agent.reconcile.effects import EffectError

# Root may make a network namespace; another user may within a user namespace, where it is root.
_NAMESPACES = (
    ("unshare", "--net"),
    ("unshare", "--user", "--map-root-user", "--net"),
)
_MATCHES = {"u32": "match ip dst 10.0.0.1/32 flowid 1:1", "flower": "dst_ip 10.0.0.1 classid 1:1"}
_FAILED = re.compile(r"^Command failed -:(\d+)$", re.MULTILINE)


def traffic_control() -> TrafficControl:
    """Never raises; where the kernel cannot be asked, the result is not `known`."""
    kinds, lines = zip(*_questions(), strict=True)
    for namespace in _NAMESPACES:
        # `-force`: a line that fails does not keep the later ones from being tried.
        command = [*namespace, "tc", "-force", "-batch", "-"]
        try:
            done = subprocess.run(
                command, input="\n".join(lines) + "\n", capture_output=True, text=True,
                timeout=TIMEOUT_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if "unshare:" not in done.stderr:
            failed = {int(number) for number in _FAILED.findall(done.stderr)}
            return _answers(kinds, failed)
    return TrafficControl()


def _questions() -> list[tuple[str, str]]:
    """A kind, and the line of `tc -batch` that tries it; the class needs no kind of its own."""
    return [
        (CLASSFUL_QDISC, f"qdisc add dev lo root handle 1: {CLASSFUL_QDISC} default 1"),
        ("", f"class add dev lo parent 1: classid 1:1 {CLASSFUL_QDISC} rate 1gbit quantum 60000"),
        *(
            (kind, f"filter add dev lo parent 1: protocol ip prio {n} {kind} {_MATCHES[kind]}")
            for n, kind in enumerate(CLASSIFIERS, 1)
        ),
        *((kind, f"qdisc replace dev lo parent 1:1 {kind}") for kind in LEAF_QDISCS),
    ]


def _answers(kinds: Sequence[str], failed: set[int]) -> TrafficControl:
    """failed: numbers of the lines that failed, from 1."""
    taken = [kind for number, kind in enumerate(kinds, 1) if number not in failed]
    return TrafficControl(
        known=True,
        qdiscs=tuple(kind for kind in (CLASSFUL_QDISC, *LEAF_QDISCS) if kind in taken),
        classifiers=tuple(kind for kind in CLASSIFIERS if kind in taken),
    )


def offloading(interfaces: Iterable[str]) -> tuple[str, ...]:
    """The interfaces whose hw-tc-offload is on. One that does not say counts as off."""
    found = []
    for interface in interfaces:
        try:
            features = run(["ethtool", "-k", interface])
        except EffectError:
            continue
        if re.search(r"^hw-tc-offload: on\b", features, re.MULTILINE):
            found.append(interface)
    return tuple(found)
