"""An apply with a job on four servers, alone and beside thousands of strangers at its port.

    python -m benchmarks.soak.strangers [--report FOLDER]

A stranger is a connection without a certificate. Idle ones say nothing; slow ones send a byte of a
TLS greeting each second. Each is opened again as soon as it is closed. They come from one address,
and then from a thousand. It makes network namespaces, so it needs root.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.report import write_tables
from benchmarks.soak.lab_under_soak import LabUnderSoak, lab_under_soak
from benchmarks.table import Table

IDLE, SLOW = 5000, 1000
STEPS = 20
# The job is applied so often in each situation, after one apply that profiles.
ROUNDS = 3
_PROGRAM = Path(__file__).with_name("strangers_process.py")
_COUNTS = re.compile(r"^opened (\d+) closed (\d+) open (\d+)$", re.MULTILINE)


def applied(lab: LabUnderSoak, plan: Path, folder: Path) -> dict[str, float]:
    """Seconds of an apply with its job: in all, of the median step and of the longest."""
    report = folder / "run.json"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    done = lab.run("apply", str(plan), "--yes", "--out", str(report))
    seconds = time.monotonic() - began
    if done.code != 0:
        raise RuntimeError(done.told)
    steps = json.loads(report.read_text())["step_seconds"]
    return {"all": seconds, "median step": sorted(steps)[len(steps) // 2], "longest": max(steps)}


@contextmanager
def strangers(lab: LabUnderSoak, addresses: int) -> Iterator[list[str]]:
    """Yields a list that has, in the end, what the strangers saw."""
    port = f"{lab.lab.record.controller_address.split('/')[0]}:7440"
    words = [sys.executable, str(_PROGRAM), port, str(IDLE), str(SLOW), str(addresses)]
    told: list[str] = []
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(lab.lab.inside_controller(words), stdout=output)
        try:
            yield told
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            output.seek(0)
            told += output.read().decode().splitlines()


def measured(lab: LabUnderSoak, folder: Path) -> Table:
    document = yaml.safe_load(lab.any_plan.read_text())
    document["job"] = {
        "kind": "placed", "model": "placewire.examples.models.mlp:training_step", "batch": 16,
        "accumulate": 1, "steps": STEPS,
    }  # fmt: skip
    document["network"] |= {"on_exit": "restore", "sharing": "strict"}
    document["solve"] = {"time_limit": "1s", "seed": 1}
    for server in document["cluster"]["servers"]:
        server["devices"][0]["memory"] = "6800KiB"
    plan = folder / "placed.yaml"
    plan.write_text(yaml.safe_dump(document, sort_keys=False))
    applied(lab, plan, folder)
    rows: list[Sequence[str]] = []
    alone = [applied(lab, plan, folder) for _ in range(ROUNDS)]
    rows.append(("alone", *_shown(alone), ""))
    for addresses in (1, 1000):
        with strangers(lab, addresses) as told:
            beside = [applied(lab, plan, folder) for _ in range(ROUNDS)]
        found = _COUNTS.findall("\n".join(told))
        opened = found[-1][0] if found else "none"
        name = f"strangers from {addresses} address" + ("es" if addresses > 1 else "")
        rows.append((name, *_shown(beside), opened))
    return Table(
        f"1. An apply with a job of {STEPS} steps, beside {IDLE} idle and {SLOW} slow strangers",
        ("", "apply, s", "median step, s", "longest step, s", "connections opened"),
        rows,
        notes=(
            f"medians of {ROUNDS} applies each, in one run on one lab of four servers.",
            "strangers take only processor time that nobody else wants, as from other machines.",
        ),
    )


def _shown(found: Sequence[dict[str, float]]) -> list[str]:
    middle = {name: sorted(one[name] for one in found)[len(found) // 2] for name in found[0]}
    return [f"{value:.3f}" for value in middle.values()]


def main() -> int:
    # As an exception, SIGTERM lets every `with` take down the lab and the processes that it made.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak.strangers", description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--report", type=Path, help="folder for strangers.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, lab_under_soak() as lab:
        table = measured(lab, Path(name))
    print(table.text())
    if asked.report is not None:
        asked.report.mkdir(parents=True, exist_ok=True)
        head = "# Strangers at the controller's port\n\n`python -m benchmarks.soak.strangers`.\n"
        write_tables(1, [table], asked.report / "strangers.md", head)
    return 0


if __name__ == "__main__":
    sys.exit(main())
