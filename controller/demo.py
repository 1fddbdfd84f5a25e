"""Runs `controller demo`: shows on this machine that training is exact, fast, and predicted.

The demo types the commands that a user would type. It makes one lab of four servers with two NICs
each, and has two acts:
  (a) it trains right: AlexNet, too large for the memory of any one device, is placed over servers;
      its losses equal, to the last bit, those of the same program on one rank;
  (b) it is fast, and predicted right: VGG16 in four micro-batches, with the operator costs of GPUs
      that are not here, runs in slow motion: placed by Placewire, by PyTorch's own
      DistributedDataParallel, and on one device; the table compares predicted and measured steps.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from placewire.controller.errors import JobFailed, PlacewireError
from placewire.controller.plan.plan_file import load_plan
from placewire.controller.records.report import RunReport
from placewire.controller.show.console import console as make_console
from placewire.controller.show.console import table
from placewire.optimizer.graph.graph_file import load_graph
from placewire.optimizer.peers.ddp import ddp_step
from placewire.optimizer.peers.step_parts import step_parts
from placewire.optimizer.placement import load_placement
from placewire.optimizer.quantities import format_seconds

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "examples" / "plans" / "quickstart.yaml"
DDP_SCRIPT = ROOT / "examples" / "ddp_in_slow_motion.py"

# No device of act (a) holds the model alone; then, for one rank, each does.
SMALL_MEMORY, LARGE_MEMORY = "300MiB", "8GiB"

# Act (b) emulates a cluster of GPUs in slow motion. A device that takes a second for a step takes
# TIME_SCALE times as long here, and a lab's NICs stand for NICs that are TIME_SCALE times as fast
# (40 Gbit/s). Frames of 9000 bytes let two cores carry all eight NICs at once.
MODEL, BATCH, SERVERS = "placewire.examples.models.vgg16:training_step", 512, 4
# In how many micro-batches the step may be cut. DistributedDataParallel has one on each server.
PARTS = (1, SERVERS, 2 * SERVERS)
DEVICE, DEVICE_MEMORY = "rtx4080s", "16GiB"
TIME_SCALE, NIC_MEGABITS = 500, 80
# The set-up latency of a message between such fast machines; slowed down it is 20 ms here.
SETUP_LATENCY = "40us"
# One device takes longest, and is never late.
STEPS, STEPS_ALONE = 3, 2
ADVISE_SECONDS = 20

OURS, DDP, ALONE = "placewire", "ddp", "one device"
ENGINES = {OURS: "auto", ALONE: "single"}


@dataclass(frozen=True)
class Row:
    """A way to train in act (b). Seconds, in slow motion."""

    name: str
    devices: int
    predicted_seconds: float
    measured_seconds: float


def demo(keep_files: Path | None) -> int:
    console = make_console()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="placewire-demo-") as scratch:
        folder = keep_files or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        lab = _written(folder / "lab.yaml", _plan_of("cpu", SMALL_MEMORY))
        try:
            _controller(console, "lab", "up", str(lab))
            _trains_right(console, folder)
            rows = _is_fast(console, folder)
        finally:
            _controller(console, "lab", "down", str(lab))
    console.print()
    console.print(_summary(rows))
    console.print(
        f"The demo took {time.monotonic() - began:.0f} s. The network of every server was restored "
        "and read back after each run, and the lab is gone."
    )
    if keep_files is not None:
        page = keep_files / f"{OURS}.html"
        console.print(f"{page} shows the fastest run in pictures: open it in a browser.")
    return 0


def _plan_of(device: str, memory: str, times: int = 1) -> dict[str, Any]:
    """The quickstart's plan with other devices, and the demo's NICs, so many times as fast."""
    document: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    if device == DEVICE:
        document["cluster"]["setup_latency"] = SETUP_LATENCY
    for server in document["cluster"]["servers"]:
        server["devices"] = [{"type": device, "memory": memory}]
        for nic in server["nics"]:
            nic["rate"] = f"{NIC_MEGABITS * times}Mbit"
    return document


def _trains_right(console: Console, folder: Path) -> None:
    _title(console, "(a) It trains right: placed over servers because one device cannot hold it")
    placed = _apply(console, folder, "placed", _plan_of("cpu", SMALL_MEMORY))
    if not placed.server_pairs:
        raise JobFailed("no two servers exchange data, so this proves nothing", where="act (a)")
    _title(console, "(a) The same program on one rank, with the memory for it")
    roomy = {**_plan_of("cpu", LARGE_MEMORY), "solve": {"engine": "single"}}
    alone = _apply(console, folder, "one-rank", roomy)
    losses = table(
        "Losses, step by step", words=("step", f"{len(placed.devices)} ranks", "one rank", "equal")
    )
    for step, (a, b) in enumerate(zip(placed.losses, alone.losses, strict=True)):
        losses.add_row(str(step), repr(a), repr(b), "==" if a == b else "DIFFERENT")
    console.print(losses)
    if not placed.losses or placed.losses != alone.losses:
        raise JobFailed("the placed run and the one-rank run disagree", where="act (a)")


def _is_fast(console: Console, folder: Path) -> list[Row]:
    """Each way's step, predicted for GPUs that are not here, and measured in slow motion."""
    _title(console, "(b) Should this step be distributed, and how? VGG16 on GPUs with 40 Gbit/s")
    step, advised = folder / "vgg16.json.gz", folder / "advised.json"
    _optimizer(
        console, "profile", MODEL, "--batch", str(BATCH), "--accumulate", *map(str, PARTS),
        "--device", DEVICE, "--out", str(step),
    )  # fmt: skip
    files = [folder / f"vgg16.{parts}x1.json.gz" for parts in PARTS]
    gpus = _written(folder / "gpus.yaml", _plan_of(DEVICE, DEVICE_MEMORY, TIME_SCALE))
    _optimizer(
        console, "advise", *map(str, files), "--cluster", str(gpus), "--time-limit",
        str(ADVISE_SECONDS), "--out", str(advised),
    )  # fmt: skip
    taken = load_placement(advised).structure_hash
    ours = next(file for file in files if load_graph(file).structure_hash == taken)
    whole, one_a_server, *_ = files
    emulated = _plan_of(DEVICE, DEVICE_MEMORY)
    found = {}
    for name, graph, steps in ((OURS, ours, STEPS), (ALONE, whole, STEPS_ALONE)):
        _title(console, f"(b) In slow motion: {name}")
        job = {"kind": "replay", "graph": str(graph), "steps": steps, "time_scale": TIME_SCALE}
        plan = {**emulated, "job": job, "solve": {**emulated["solve"], "engine": ENGINES[name]}}
        plan["network"] = {**emulated["network"], "sharing": "job"}
        report = _apply(console, folder, name.replace(" ", "-"), plan)
        predicted, measured = report.predicted_step_seconds, report.measured_step_seconds
        assert predicted is not None and measured is not None
        found[name] = Row(name, len(report.devices), predicted, measured)
    return [found[OURS], _ddp(console, folder, one_a_server, gpus), found[ALONE]]


def _ddp(console: Console, folder: Path, graph: Path, gpus: Path) -> Row:
    """PyTorch's DistributedDataParallel over layers that only take their time; predicted as
    `optimizer advise` does it. gpus: the plan of the cluster that is emulated."""
    _title(console, f"(b) In slow motion: {DDP}, by torchrun's script")
    out = folder / "ddp.seconds"
    arguments = [
        str(graph), "--device-type", DEVICE, "--time-scale", str(TIME_SCALE), "--steps",
        str(STEPS), "--out", str(out),
    ]  # fmt: skip
    plan = _plan_of("cpu", DEVICE_MEMORY)
    plan["job"] = {"kind": "torchrun", "script": str(DDP_SCRIPT), "arguments": arguments}
    plan["network"]["sharing"] = "auto"
    del plan["solve"]
    _apply(console, folder, DDP, plan)
    cluster = load_plan(gpus).payload_cluster
    predicted = ddp_step(step_parts(load_graph(graph)), cluster).step_seconds * TIME_SCALE
    return Row(DDP, SERVERS, predicted, float(out.read_text(encoding="utf-8")))


def _apply(console: Console, folder: Path, name: str, document: dict[str, Any]) -> RunReport:
    """Writes the plan to a file, runs `controller apply` on it, and reads the run's report."""
    plan, report = _written(folder / f"{name}.yaml", document), folder / f"{name}.run.json"
    page = str(folder / f"{name}.html")
    _controller(console, "apply", str(plan), "--yes", "--out", str(report), "--report", page)
    return RunReport.model_validate_json(report.read_text(encoding="utf-8"))


def _written(file: Path, plan: dict[str, Any]) -> Path:
    file.write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    return file


def _controller(console: Console, *arguments: str) -> None:
    _typed(console, "controller", *arguments)


def _optimizer(console: Console, *arguments: str) -> None:
    _typed(console, "optimizer", *arguments)


def _typed(console: Console, program: str, *arguments: str) -> None:
    console.print(f"\n$ {program} {' '.join(arguments)}", style="bold")
    command = [sys.executable, "-P", "-m", f"placewire.{program}.cli", *arguments]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        failed = PlacewireError(f"`{program} {arguments[0]}` ended with {code}, see above")
        failed.exit_code = code
        raise failed


def _title(console: Console, text: str) -> None:
    console.print()
    console.rule(Text(text, style="bold"), align="left")


def _summary(rows: list[Row]) -> Table:
    made = table(
        f"Act (b): a step of VGG16, in slow motion ({TIME_SCALE}×)",
        words=("trained by",),
        figures=("devices", "predicted", "measured", "off by", "against one device"),
    )
    alone = next(row.measured_seconds for row in rows if row.name == ALONE)
    for row in rows:
        error = f"{row.measured_seconds / row.predicted_seconds - 1:+.1%}"
        gain = f"{alone / row.measured_seconds:.2f}×"
        seconds = format_seconds(row.predicted_seconds), format_seconds(row.measured_seconds)
        made.add_row(row.name, str(row.devices), *seconds, error, gain)
    return made
