"""Item 8: an ordinary script of DistributedDataParallel, by torchrun and by `controller apply`.

The servers of a lab have two NICs. torchrun gives the script one of them, as gloo needs it;
applied, the same script runs on a network that was shaped and measured.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.job.nic_samples import sample_in
from benchmarks.job.script_in_lab import MTU_BYTES, NICS, RAILS, ScriptInLab, by_apply
from benchmarks.table import Table
from placewire.controller.lab import Lab

NIC_RATE = "40Mbit"
SCRIPT = "examples/ddp.py"
# With these, a step has several buckets of unequal size.
ARGUMENTS = ("--steps", "24", "--width", "384", "--bucket-mb", "0.6", "--all-reduce-mb", "4")
SERVERS = (2, 4)


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
        case = ScriptInLab("scripts", servers, NIC_RATE, SCRIPT, ARGUMENTS)
        with tempfile.TemporaryDirectory() as name:
            plan = case.plan(Path(name))
            with case.lab(plan) as lab:
                plain, cut = _plain(case, lab), _applied(plan)
                whole = _applied(case.plan(Path(name), cut=False))
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


def _plain(case: ScriptInLab, lab: Lab) -> Run:
    before = _sent(lab, case.servers)
    said = case.by_torchrun(lab)
    after = _sent(lab, case.servers)
    return _run(said, {nic: after[nic] - before[nic] for nic in after})


def _sent(lab: Lab, servers: int) -> dict[tuple[str, str], int]:
    """The bytes that each NIC has sent, by server and rail."""
    found: dict[tuple[str, str], int] = {}
    for server in (f"s{k + 1}" for k in range(servers)):
        sent = sample_in(lab.inside_server(server, []), NICS, lab.environment).sent_bytes
        found |= {(server, rail): sent[nic] for nic, rail in zip(NICS, RAILS, strict=True)}
    return found


def _applied(plan: Path) -> Run:
    said, report = by_apply(plan)
    return _run(said, {(r["server"], r["rail"]): r["sent_bytes"] for r in report["rails"]})


def _run(said: str, sent_bytes: Mapping[tuple[str, str], int]) -> Run:
    steps = [float(found) for found in re.findall(r"step \d+: ([\d.]+) s", said)]
    late = sorted(steps[len(steps) // 3 :])
    one, several = re.findall(r"all-reduce.*?: ([\d.]+) s", said)
    return Run(sent_bytes, float(one), float(several), late[len(late) // 2])
