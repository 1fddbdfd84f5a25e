"""Runs `controller demo`: shows on this machine that training is exact and predictions hold.

The demo types the commands that a user would type. It makes one lab of four servers with two NICs
each, and has two acts:
  (a) it trains right: AlexNet, too large for the memory of any one device, is placed over servers;
      its losses equal, to the last bit, those of the same program on one rank;
  (b) it predicts right: the same model's graph, with the operator costs of a faster device, is
      replayed under five plans, each with its own best placement; the table compares predicted and
      measured step times.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from placewire.controller.errors import JobFailed, PlacewireError
from placewire.controller.records.report import RunReport
from placewire.controller.show.console import console as make_console
from placewire.controller.show.console import table
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.profile.scale import with_total_seconds
from placewire.optimizer.quantities import format_seconds

QUICKSTART = Path(__file__).resolve().parents[1] / "examples" / "plans" / "quickstart.yaml"

# Act (b) emulates a cluster of faster devices and faster NICs in slow motion. A device that takes
# DEVICE_STEP_SECONDS for a step takes TIME_SCALE times as long here, however fast this processor
# is, and 25 Mbit/s NICs stand for NICs TIME_SCALE times as fast (25 Gbit/s). All eight NICs at once
# carry 200 Mbit/s, which is about what the lab's switches can do with two cores.
DEVICE_STEP_SECONDS = 8e-3
TIME_SCALE = 1000.0
# The set-up latency of a message between such fast machines; slowed down it is 20 ms here.
SETUP_LATENCY = "20us"
REPLAY_STEPS = 3

VARIANTS: dict[str, dict[str, Any]] = {
    "joint placement and rates": {"network": {"sharing": "strict"}},
    "even split of the NICs": {"network": {"sharing": "even"}},
    "all NICs, unshaped": {"network": {"sharing": "unshaped"}},
    "one NIC, unshaped": {"network": {"sharing": "unshaped", "rails": ["a"]}},
    "best single device": {"solve": {"engine": "single"}},
}


def demo(keep_files: Path | None) -> int:
    console = make_console()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="placewire-demo-") as scratch:
        folder = keep_files or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _controller(console, "lab", "up", str(QUICKSTART))
            trained = _trains_right(console, folder)
            results = _predicts_right(console, folder, trained)
        finally:
            _controller(console, "lab", "down", str(QUICKSTART))
    console.print()
    console.print(_summary(results))
    console.print(
        f"The demo took {time.monotonic() - began:.0f} s. The network of every server was restored "
        "and read back after each run, and the lab is gone."
    )
    return 0


def _trains_right(console: Console, folder: Path) -> RunReport:
    _title(console, "(a) It trains right: placed over servers because one device cannot hold it")
    placed = _apply(
        console, folder, "placed", yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    )
    if not placed.server_pairs:
        raise JobFailed("no two servers exchange data, so this proves nothing", where="act (a)")
    _title(console, "(a) The same program on one rank, with the memory for it")
    alone = _apply(console, folder, "one-rank", {**_roomy(), "solve": {"engine": "single"}})
    losses = table(
        "Losses, step by step", words=("step", f"{len(placed.devices)} ranks", "one rank", "equal")
    )
    for step, (a, b) in enumerate(zip(placed.losses, alone.losses, strict=True)):
        losses.add_row(str(step), repr(a), repr(b), "==" if a == b else "DIFFERENT")
    console.print(losses)
    if not placed.losses or placed.losses != alone.losses:
        raise JobFailed("the placed run and the one-rank run disagree", where="act (a)")
    return placed


def _roomy() -> dict[str, Any]:
    """The quickstart's plan, with devices that could each hold the whole model."""
    document: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    for server in document["cluster"]["servers"]:
        for device in server["devices"]:
            device["memory"] = "8GiB"
    return document


def _predicts_right(
    console: Console, folder: Path, trained: RunReport
) -> list[tuple[str, RunReport]]:
    graph = load_graph(Path(trained.files["graph"]))
    replayed = folder / "alexnet-faster.json.gz"
    save_graph(with_total_seconds(graph, DEVICE_STEP_SECONDS), replayed)
    job = {"kind": "replay", "graph": str(replayed), "steps": REPLAY_STEPS}
    results = []
    for name, difference in VARIANTS.items():
        _title(console, f"(b) It predicts right: {name}")
        document = _roomy()
        document["cluster"]["setup_latency"] = SETUP_LATENCY
        document["job"] = {**job, "time_scale": TIME_SCALE}
        for section, values in difference.items():
            document[section] = {**document[section], **values}
        results.append((name, _apply(console, folder, re.sub(r"\W+", "-", name), document)))
    return results


def _apply(console: Console, folder: Path, name: str, document: dict[str, Any]) -> RunReport:
    """Writes the plan to a file, runs `controller apply` on it, and reads the run's report."""
    plan, report = folder / f"{name}.yaml", folder / f"{name}.run.json"
    plan.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    _controller(console, "apply", str(plan), "--yes", "--out", str(report))
    return RunReport.model_validate_json(report.read_text(encoding="utf-8"))


def _controller(console: Console, *arguments: str) -> None:
    console.print(f"\n$ controller {' '.join(arguments)}", style="bold")
    command = [sys.executable, "-P", "-m", "placewire.controller.cli", *arguments]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        failed = PlacewireError(f"`controller {arguments[0]}` ended with {code}, see above")
        failed.exit_code = code
        raise failed


def _title(console: Console, text: str) -> None:
    console.print()
    console.rule(Text(text, style="bold"), align="left")


def _summary(results: list[tuple[str, RunReport]]) -> Table:
    made = table(
        f"Act (b): {len(results)} plans, steps in slow motion ({TIME_SCALE:.0f}×)",
        words=("plan",),
        figures=("devices", "predicted", "measured", "off by", "against one device"),
    )
    alone = dict(results)["best single device"].measured_step_seconds
    for name, report in results:
        predicted, measured = report.predicted_step_seconds, report.measured_step_seconds
        assert predicted is not None and measured is not None and alone is not None
        error, gain = f"{measured / predicted - 1:+.1%}", f"{alone / measured:.2f}×"
        seconds = format_seconds(predicted), format_seconds(measured)
        made.add_row(name, str(len(report.devices)), *seconds, error, gain)
    return made
