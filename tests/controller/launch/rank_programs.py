"""Programs that stand in for ranks, and the end of a controller that has started some."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from placewire.job.contract.specification import RailInterface, RankSpec, ScriptSpec
from tests.free_port import free_port

# What every stand-in begins with: its specification, and words to say.
PRELUDE = """
import json, os, signal, sys, time
spec = json.load(open(sys.argv[1]))
rank = spec["rank"]
def say(**event): print(json.dumps({"rank": rank, **event}), flush=True)
def step(k): say(event="step", step=k, seconds=0.5)
def finish(): say(event="finished", traffic=[], peak_memory_bytes=1)
"""


def specs(count: int = 2) -> list[RankSpec]:
    return [
        RankSpec(
            kind="placed",
            rank=rank,
            world_size=count,
            device=f"s{rank % 2 + 1}/{rank // 2}",
            master_address="127.0.0.1",
            master_tcp_port=29400,
            rail_interfaces=(),
            placement_file="none",
            model="placewire.examples.models.mlp:training_step",
            steps=2**40,
        )
        for rank in range(count)
    ]


def on_servers(servers: int, each: int = 1) -> list[RankSpec]:
    """Specifications of ranks, so many on each server, numbered by server."""
    return [
        spec.model_copy(update={"device": f"s{spec.rank // each + 1}/{spec.rank % each}"})
        for spec in specs(servers * each)
    ]


def script_specs(count: int = 1, script: str = "train.py", **more: Any) -> list[ScriptSpec]:
    port = free_port()
    return [
        ScriptSpec(
            rank=rank, world_size=count, device=f"s{rank + 1}/0", master_address="127.0.0.1",
            master_tcp_port=port, rail_pattern=(0,), script=script,
            rail_interfaces=(RailInterface(rail="a", interface="lo", address=""),), **more,
        )
        for rank in range(count)
    ]  # fmt: skip


# Longer than a placed rank is given to end.
SAVES_SECONDS = 5.0
# Says how often it was asked to end, and takes its time; and so do what is before it and beside it.
SAVES = f"""
import os, signal, subprocess, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
left = subprocess.Popen([sys.executable, "-c", ignoring], stdout=subprocess.DEVNULL)
print("trains", left.pid, flush=True)
while not asked: time.sleep(0.05)
until = time.monotonic() + {SAVES_SECONDS}
while time.monotonic() < until: time.sleep(0.05)
left.kill(); left.wait()
print("saved, asked", len(asked), "times", flush=True)
"""

# Says a step and prints, over and over; and leaves a mark of each that outlives everybody.
GOES_ON = """
from placewire.job.contract.specification import StepDone
from placewire.job.supervision.events import Events
from placewire.job.supervision.lease_deadline import follow_hold
events = Events()
follow_hold(events, rank, spec["held_seconds"])
for k in range(600):
    events.emit(StepDone(rank=rank, step=k, seconds=0.1))
    print("the model prints", flush=True)
    with open(sys.argv[0] + f".{rank}", "a") as marks: marks.write("x")
    time.sleep(0.1)
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_once_two_ranks_are_heard(controller: str) -> None:
    """Runs a controller's source, which prints the rank of each event, and kills it once it has
    heard two ranks twice: by then it has told both for how long they may run."""
    command = [sys.executable, "-c", controller]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        heard: Counter[bytes] = Counter()
        while sum(times > 1 for times in heard.values()) < 2:
            line = process.stdout.readline()
            assert line, "the controller ended by itself"
            heard[line] += 1
        process.send_signal(signal.SIGKILL)
