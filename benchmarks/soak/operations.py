"""What is done to a lab under soak, and what goes wrong meanwhile.

A fault strikes at a random moment of an operation and is ended after it. Then the servers are made
good as an operator would: by `controller recover`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.soak.lab_under_soak import SERVERS, Done, LabUnderSoak

# A change of the network takes about so long on this lab.
CHANGE_SECONDS = 6.0

Command: TypeAlias = Callable[[LabUnderSoak, random.Random], tuple[str, ...]]
Strike: TypeAlias = Callable[[LabUnderSoak, random.Random], Callable[[], None]]


@dataclass(frozen=True)
class Fault:
    """strike: makes it happen, and returns what ends it. kills_controller: the command itself is
    killed."""

    name: str
    strike: Strike | None = None
    kills_controller: bool = False


@dataclass(frozen=True)
class Operation:
    """changes: whether it can leave servers on another decision, and a fault may make it fail."""

    name: str
    weight: int
    command: Command
    changes: bool = True

    def run(self, lab: LabUnderSoak, rng: random.Random, fault: Fault | None) -> Iterator[str]:
        """Yields what did not hold."""
        words = self.command(lab, rng)
        killed = fault is not None and fault.kills_controller
        with _striking(lab, rng, fault):
            kill_after = rng.uniform(0.5, CHANGE_SECONDS) if killed else None
            done = lab.run(*words, kill_after_seconds=kill_after)
        if "Traceback" in done.output:
            yield f"{' '.join(words)}: {done.told}"
        if fault is None and not _may_end_so(self, done):
            yield f"{' '.join(words)}: {done.told}"
        if fault is not None and self.changes:
            recovered = lab.run("recover", str(lab.any_plan), "--yes")
            if recovered.code not in (0, 5, 8):
                yield f"recover: {recovered.told}"


def _may_end_so(operation: Operation, done: Done) -> bool:
    """Whether without a fault the command may end like this: with 0; a rollback or a verify that
    finds nothing to go back to, or nothing in force, with its refusal."""
    return done.code == 0 or (operation.name in ("rollback", "verify") and done.code in (2, 3, 6))


@contextmanager
def _striking(lab: LabUnderSoak, rng: random.Random, fault: Fault | None) -> Iterator[None]:
    """The fault strikes while what is inside runs, at a random moment, and is ended after it."""
    if fault is None or fault.strike is None:
        yield
        return
    endings: list[Callable[[], None]] = []
    strike = fault.strike
    timer = threading.Timer(
        rng.uniform(0.0, CHANGE_SECONDS), lambda: endings.append(strike(lab, rng))
    )
    timer.start()
    try:
        yield
    finally:
        timer.join()
        for end in endings:
            end()


def _apply(lab: LabUnderSoak, rng: random.Random) -> tuple[str, ...]:
    plan = rng.choice(sorted(lab.plans))
    return ("apply", str(lab.plans[plan]), "--network-only", "--yes")


def _on_a_plan(*words: str) -> Command:
    first, *rest = words
    return lambda lab, _: (first, str(lab.any_plan), *rest)


OPERATIONS = (
    Operation("apply", 6, _apply),
    Operation("destroy", 3, _on_a_plan("destroy", "--yes")),
    Operation("rollback", 1, _on_a_plan("rollback", "--yes")),
    Operation("recover", 1, _on_a_plan("recover", "--yes")),
    Operation("verify", 1, _on_a_plan("verify", "--no-measurement"), changes=False),
    Operation("preview", 1, _on_a_plan("preview", "--network-only"), changes=False),
    Operation("status", 1, _on_a_plan("status"), changes=False),
)


def _agent_dies(lab: LabUnderSoak, rng: random.Random) -> Callable[[], None]:
    server = rng.choice(SERVERS)
    lab.kill_agent(server)
    return lambda: lab.start_agent(server)


def _nic_goes_away(lab: LabUnderSoak, rng: random.Random) -> Callable[[], None]:
    server, nic = rng.choice(SERVERS), rng.choice(("nic0", "nic1"))
    lab.take_nic_away(server, nic)
    return lambda: lab.bring_nic_back(server, nic)


def _others_take_an_address(lab: LabUnderSoak, rng: random.Random) -> Callable[[], None]:
    lab.sh(rng.choice(SERVERS), "ip address flush dev pw-nic0")
    return lambda: None


def _others_remove_a_bridge(lab: LabUnderSoak, rng: random.Random) -> Callable[[], None]:
    lab.vsctl(rng.choice(SERVERS), "--if-exists", "del-br", "pw-nic1")
    return lambda: None


def _others_make_their_own(lab: LabUnderSoak, rng: random.Random) -> Callable[[], None]:
    """An address on a bridge of ours, and a route in one of our tables: both are taken away by
    those who made them."""
    server = rng.choice(SERVERS)
    lab.sh(server, "ip address add 10.66.0.1/24 dev pw-nic0")
    lab.sh(server, "ip route add 10.67.0.0/16 dev mgmt0 table 8003")

    def end() -> None:
        lab.sh(server, "ip address del 10.66.0.1/24 dev pw-nic0")
        lab.sh(server, "ip route del 10.67.0.0/16 dev mgmt0 table 8003")

    return end


FAULTS = (
    Fault("controller killed", kills_controller=True),
    Fault("agent killed", _agent_dies),
    Fault("NIC away", _nic_goes_away),
    Fault("others take an address", _others_take_an_address),
    Fault("others remove a bridge", _others_remove_a_bridge),
    Fault("others make their own", _others_make_their_own),
)
