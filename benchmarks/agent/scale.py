"""Item 5: one server with 256 queues and flows, and what an idle agent costs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.table import Table
from placewire.agent.contract.entries import FIRST_PAIR_QUEUE, Classifier, Flow
from placewire.agent.contract.messages import POLL_SECONDS, Commit, Destroy, ReadBack, Stage
from placewire.agent.contract.state import DesiredState
from tests.agent.keeping import PLAN
from tests.agent.real_lab import RealLab, real_lab
from tests.agent.server_under_test import wait_for
from tests.agent.states import desired_state, queue

QUEUES_PER_NIC = 128
BITS_PER_SECOND = 100_000
ROUNDS = 3
# The agent reads everything back once a minute, and once more when its own change has settled.
SETTLED_SECONDS, IDLE_SECONDS = 10.0, 120.0


def tables(_: Path | None) -> Iterable[Table]:
    with real_lab() as lab:
        lab.controller.hold_polls(POLL_SECONDS)
        rows = _times(lab)
        rows += _at_rest(lab)
    yield Table(
        f"5. {2 * QUEUES_PER_NIC} queues, flows and classifiers on one server",
        ("what", "found", "wanted"),
        rows,
        notes=(
            f"Seconds: the agent's daemon, from request to reply, median of {ROUNDS}. Re-verified: "
            "everything read back and compared. Memory: resident, its own part of shared pages "
            f"(Pss) after all that. Idle: over {IDLE_SECONDS:.0f} s with the state in force.",
        ),
    )


def large_state(generation: int, bits_per_second: int = BITS_PER_SECOND) -> DesiredState:
    """Two NICs, each with QUEUES_PER_NIC destinations: a queue, a flow and a classifier for
    each."""
    base = desired_state(generation)
    queues = [q for q in base.queues if q.queue_id < FIRST_PAIR_QUEUE]
    classifiers = [c for c in base.classifiers if c.destination is None]
    flows = []
    for rail, nic in enumerate(("nic0", "nic1")):
        for number in range(FIRST_PAIR_QUEUE, FIRST_PAIR_QUEUE + QUEUES_PER_NIC):
            to = f"10.7.{rail}.{number}"
            queues.append(queue(nic, number, bits_per_second, 2 * bits_per_second, f"to {to}"))
            flows.append(Flow(bridge=f"pw-{nic}", destination=to, queue_id=number))
            classifiers.append(Classifier(nic=nic, destination=to, queue_id=number))
    changed = {"queues": tuple(queues), "flows": tuple(flows), "classifiers": tuple(classifiers)}
    return base.model_copy(update=changed)


def _times(lab: RealLab) -> list[tuple[str, str, str]]:
    seconds: dict[str, list[float]] = {"applied": [], "changed": [], "re-verified": []}
    for number in range(ROUNDS):
        generation = 2 * number + 1  # the second of each round changes the first
        seconds["applied"].append(_stage(lab, large_state(generation)))
        seconds["re-verified"].append(_verify(lab, generation))
        seconds["changed"].append(_stage(lab, large_state(generation + 1, 2 * BITS_PER_SECOND)))
        seconds["re-verified"].append(_verify(lab, generation + 1))
        if number < ROUNDS - 1:
            lab.ask(Destroy(plan_name=PLAN))
    wanted = {"applied": "2 s", "changed": "", "re-verified": "0.5 s"}
    names = {"changed": "rate of every queue changed"}
    return [
        (names.get(what, what), f"{statistics.median(took):.2f} s", wanted[what])
        for what, took in seconds.items()
    ]


def _stage(lab: RealLab, state: DesiredState) -> float:
    answer, seconds = _timed(lambda: lab.ask(Stage(desired=state, lease_seconds=60)))
    assert answer["result"]["succeeded"], answer
    lab.ask(Commit(generation=state.generation, lease_seconds=None))
    return seconds


def _verify(lab: RealLab, generation: int) -> float:
    answer, seconds = _timed(lambda: lab.ask(ReadBack(generation=generation)))
    result = answer["result"]
    assert not result["deviations"] and not result["problems"], answer
    return seconds


def _timed(ask: Callable[[], dict[str, object]]) -> tuple[dict, float]:
    started = time.monotonic()
    return ask(), time.monotonic() - started


def _at_rest(lab: RealLab) -> list[tuple[str, str, str]]:
    pid = lab.agent.pid
    mebibytes = _proportional_bytes(pid) / 2**20
    time.sleep(SETTLED_SECONDS)
    linked = _idle_part(pid)
    lab.controller.kill()
    log = lab.server.directory / "agent.log"
    wait_for(lambda: "no controller" in log.read_text(), "the agent alone", 20)
    return [
        ("memory of the agent", f"{mebibytes:.0f} MiB", "120 MB"),
        ("idle, linked to a controller", f"{linked:.2%} of a core", "0.5 %"),
        ("idle, no controller there", f"{_idle_part(pid):.2%} of a core", "0.5 %"),
    ]


def _idle_part(pid: int) -> float:
    """The part of a core that a process takes while it has nothing to do."""
    before = _processor_seconds(pid)
    time.sleep(IDLE_SECONDS)
    return (_processor_seconds(pid) - before) / IDLE_SECONDS


def _proportional_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) * 1024


def _processor_seconds(pid: int) -> float:
    """Processor time of a process and of its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
