"""Runs a script of torchrun's in a lab: as torchrun starts it, and by `controller apply`.

The lab and the command run as processes of their own, as a user would start them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.job.replays import plan_document
from benchmarks.report import ROOT
from placewire.controller.lab import Lab, find_lab

# Frames are large: a megabyte in small ones takes these cores three times as long to switch.
MTU_BYTES, RAILS = 9000, ("a", "b")
NICS = tuple(f"nic{number}" for number in range(len(RAILS)))
PORT = 29600
LIMIT_SECONDS = 400


@dataclass(frozen=True)
class ScriptInLab:
    """name: of the lab and of its plan. nic_rate: of each NIC, as a plan has it. script: from the
    project's folder on."""

    name: str
    servers: int
    nic_rate: str
    script: str
    arguments: Sequence[str]

    def plan(self, folder: Path, *, cut: bool = True) -> Path:
        """Writes the plan; returns its file. cut: whether collectives are cut between NICs."""
        document = plan_document(
            self.servers, len(RAILS), name=self.name, rate=self.nic_rate, mtu=MTU_BYTES
        )
        document["cluster"]["setup_latency"] = "500us"
        for server in document["cluster"]["servers"]:
            server["devices"][0]["type"] = "cpu"
        document["job"] = {
            "kind": "torchrun", "script": self.script, "arguments": list(self.arguments),
            # By torchrun, too, each process has one.
            "cut_collectives": cut, "threads": 1,
        }  # fmt: skip
        file = folder / f"{self.name}.yaml"
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        return file

    @contextmanager
    def lab(self, plan: Path) -> Iterator[Lab]:
        _controller("lab", "up", str(plan))
        try:
            lab = find_lab(self.name)
            assert lab is not None
            yield lab
        finally:
            _controller("lab", "down", str(plan))

    def by_torchrun(self, lab: Lab, nics: Sequence[str] = NICS[:1]) -> str:
        """nics: those that gloo is given. Returns what rank 0 and its torchrun printed. Raises
        RuntimeError with the end of it where a process failed."""
        given = {"GLOO_SOCKET_IFNAME": ",".join(nics), "OMP_NUM_THREADS": "1"}
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self.servers),
            "--nproc-per-node", "1", "--master-addr", "10.9.0.1", "--master-port", str(PORT),
        ]  # fmt: skip
        started = []
        try:
            for k in range(self.servers):
                own = [*command, "--node-rank", str(k), self.script, *self.arguments]
                started.append(subprocess.Popen(
                    lab.inside_server(f"s{k + 1}", own), cwd=ROOT, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True,
                    env={**lab.environment, **given},
                ))  # fmt: skip
            said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
        if any(process.returncode for process in started):
            raise RuntimeError(f"torchrun failed\n{said[0][-2000:]}")
        return said[0]


def by_apply(plan: Path) -> tuple[str, dict[str, Any]]:
    """Returns what the command printed, and its report. Raises RuntimeError, with the end of the
    output, where it failed."""
    report_file = plan.with_suffix(".run.json")
    said = _controller("apply", str(plan), "--yes", "--out", str(report_file))
    return said, json.loads(report_file.read_text())


def _controller(*arguments: str) -> str:
    """Runs a command of the controller; returns its output. Raises RuntimeError with the end of the
    output where it fails."""
    command = [sys.executable, "-m", "placewire.controller.cli", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(arguments)} ended with {done.returncode}\n{done.stdout[-2000:]}"
        )
    return done.stdout
