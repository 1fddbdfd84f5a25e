"""Item 8: an ordinary script of DistributedDataParallel, by torchrun and by `controller apply`.

The servers of a lab have two NICs. torchrun gives the script one of them, as gloo needs it;
applied, the same script runs on a network that was shaped and measured.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.job.replays import plan_document
from benchmarks.report import ROOT
from benchmarks.table import Table
from placewire.controller.lab import find_lab

LAB = "scripts"
# Frames are large: a megabyte in small ones takes these cores three times as long to switch.
NIC_RATE, MTU_BYTES, RAILS = "40Mbit", 9000, ("a", "b")
SCRIPT = "examples/ddp.py"
# With these, a step has several buckets of unequal size.
ARGUMENTS = ("--steps", "24", "--width", "384", "--bucket-mb", "0.6", "--all-reduce-mb", "4")
SERVERS = (2, 4)
PORT = 29600
LIMIT_SECONDS = 400


@dataclass(frozen=True)
class Run:
    """sent_bytes: by server and rail. Seconds: as rank 0 of the script says."""

    sent_bytes: Mapping[tuple[str, str], int]
    one_seconds: float
    several_seconds: float
    step_seconds: float

    def share(self, rail: str, *servers: str) -> float:
        """The part on this rail of all that these servers sent."""
        own = {key: sent for key, sent in self.sent_bytes.items() if key[0] in servers}
        return sum(sent for (_, on), sent in own.items() if on == rail) / sum(own.values())

    @property
    def servers(self) -> list[str]:
        return sorted({server for server, _ in self.sent_bytes})

    @property
    def worst_nic(self) -> float:
        """The largest deviation of a NIC from an equal part of what its server sent."""
        equal = 1 / len(RAILS)
        return max(
            (self.share(rail, server) / equal - 1 for server in self.servers for rail in RAILS),
            key=abs,
        )


def tables(pictures: Path | None) -> Iterable[Table]:
    rows = []
    for servers in SERVERS:
        with tempfile.TemporaryDirectory() as name:
            plan = _written(Path(name), servers, cut=True)
            _controller("lab", "up", str(plan))
            try:
                plain, cut = _plain(plan, servers), _applied(plan)
                whole = _applied(_written(Path(name), servers, cut=False))
            finally:
                _controller("lab", "down", str(plan))
        rows += [
            _row(servers, "torchrun, one NIC", plain), _row(servers, "applied, not cut", whole),
            _row(servers, "applied", cut),
        ]  # fmt: skip
    yield Table(
        title="8. An ordinary script, by torchrun and applied",
        columns=(
            "servers", "started", *(f"sent on {rail}" for rail in RAILS), "worst NIC off its part",
            "all-reduce of 4 MB, s", "eight of 0.5 MB at once, s", "step, s",
        ),
        rows=rows,
        notes=(
            f"{SCRIPT} {' '.join(ARGUMENTS)}, unmodified: DistributedDataParallel over gloo, one "
            f"process a server. A lab of two NICs of {NIC_RATE}/s a server, MTU {MTU_BYTES}. gloo "
            "gives a collective to one NIC; not cut: to each in turn, by `cut_collectives: false`. "
            "Medians; a step's is of those after the first third. Worst NIC: of all servers', "
            "against an equal part of what its server sent; more than 10 % is what `controller "
            "apply` complains of.",
        ),
    )  # fmt: skip


def _row(servers: int, how: str, run: Run) -> Sequence[str]:
    return (
        str(servers), how, *(f"{run.share(rail, *run.servers):.1%}" for rail in RAILS),
        f"{run.worst_nic:+.1%}",
        f"{run.one_seconds:.2f}", f"{run.several_seconds:.2f}", f"{run.step_seconds:.2f}",
    )  # fmt: skip


def _plain(plan: Path, servers: int) -> Run:
    lab = find_lab(LAB)
    assert lab is not None
    before = _sent(lab, servers)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(servers),
        "--nproc-per-node", "1", "--master-addr", "10.9.0.1", "--master-port", str(PORT),
    ]  # fmt: skip
    started = []
    try:
        for k in range(servers):
            own = [*command, "--node-rank", str(k), SCRIPT, *ARGUMENTS]
            started.append(subprocess.Popen(
                lab.inside_server(f"s{k + 1}", own), cwd=ROOT, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
                env={**lab.environment, "GLOO_SOCKET_IFNAME": "nic0", "OMP_NUM_THREADS": "1"},
            ))  # fmt: skip
        said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
    if any(process.returncode for process in started):
        raise RuntimeError(f"torchrun failed\n{said[0][-2000:]}")
    after = _sent(lab, servers)
    return _run(said[0], {nic: after[nic] - before[nic] for nic in after})


def _sent(lab: Any, servers: int) -> dict[tuple[str, str], int]:
    """The bytes that each NIC has sent, by server and rail."""
    found = {}
    for server in (f"s{k + 1}" for k in range(servers)):
        shown = subprocess.run(
            ["ip", "-n", lab.namespace(server), "-j", "-s", "link"],
            capture_output=True, check=True,
        )  # fmt: skip
        links = {link["ifname"]: link for link in json.loads(shown.stdout)}
        for number, rail in enumerate(RAILS):
            found[server, rail] = links[f"nic{number}"]["stats64"]["tx"]["bytes"]
    return found


def _applied(plan: Path) -> Run:
    report_file = plan.with_suffix(".run.json")
    said = _controller("apply", str(plan), "--yes", "--out", str(report_file))
    report = json.loads(report_file.read_text())
    return _run(said, {(r["server"], r["rail"]): r["sent_bytes"] for r in report["rails"]})


def _run(said: str, sent_bytes: Mapping[tuple[str, str], int]) -> Run:
    steps = [float(found) for found in re.findall(r"step \d+: ([\d.]+) s", said)]
    late = sorted(steps[len(steps) // 3 :])
    one, several = re.findall(r"all-reduce.*?: ([\d.]+) s", said)
    return Run(sent_bytes, float(one), float(several), late[len(late) // 2])


def _written(folder: Path, servers: int, *, cut: bool) -> Path:
    document = plan_document(servers, len(RAILS), name=LAB, rate=NIC_RATE, mtu=MTU_BYTES)
    document["cluster"]["setup_latency"] = "500us"
    for server in document["cluster"]["servers"]:
        server["devices"][0]["type"] = "cpu"
    document["job"] = {"kind": "torchrun", "script": SCRIPT, "arguments": list(ARGUMENTS)}
    document["job"]["cut_collectives"] = cut
    file = folder / "scripts.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


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
