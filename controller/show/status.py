"""Shows what servers have in force, and what is left of a job."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from placewire.agent.contract.messages import Observation, ReadBackResult
from placewire.agent.contract.state import DriftState
from placewire.controller.launch.job_status import JobStatus
from placewire.controller.launch.of_plans import about_others
from placewire.controller.show.changes import diff_lines
from placewire.controller.show.console import table
from placewire.visible import visible, visible_lines


def show_servers(
    console: Console,
    observations: Mapping[str, Observation | None],
    results: Mapping[str, ReadBackResult],
) -> None:
    """observations: None for a silent server. results: of servers with something in force."""
    made = table(
        "Servers",
        words=("server", "phase", "plan", "decision", "generation", "lease", "read back"),
    )
    for server, observation in observations.items():
        if observation is None:
            made.add_row(server, Text("unreachable", style="red"), "", "", "", "", "")
            continue
        lease = observation.lease
        left = "" if lease.expires_unix is None else f"{lease.expires_unix - time.time():.0f} s"
        read_back = Text()
        if (found := results.get(server)) is not None:
            off = len(found.deviations) + len(found.problems)
            read_back = Text(f"{off} off", "red") if off else Text("as decided", "green")
        made.add_row(
            server, lease.phase, lease.plan_name or "", (lease.plan_digest or "")[:12],
            str(lease.generation), left, read_back,
        )  # fmt: skip
    console.print(made)
    for server, found in results.items():
        for line in diff_lines(found.deviations):
            console.print(Text(f"{server}:") + line)
        for problem in found.problems:
            console.print(f"{server}: {visible(problem)}")
        for said in _drift_lines(found.drift):
            console.print(f"{server}: {visible(said)}")
    for server, observation in observations.items():
        if observation is not None:
            # What is in force was read back, with its problems.
            idle_ones = () if server in results else observation.state.problems
            lease = observation.lease
            if lease.detail:
                style = "red" if lease.is_unsettled else "yellow"
                console.print(f"{server}: {visible(lease.detail)}", style=style)
            for said in (*idle_ones, *lease.owed):
                console.print(f"{server}: {visible(said)}", style="red")
    digests = {o.lease.plan_digest for o in observations.values() if o is not None}
    if len(digests) > 1:
        console.print("mixed: the servers are on different decisions", style="yellow")


def show_job(console: Console, job: JobStatus) -> None:
    for rank in job.ranks:
        console.print(f"a rank runs on {rank.server}: pid {rank.pid}, for {rank.seconds:.0f} s")
    if job.ranks and job.controller is not None:
        console.print(f"its controller: {job.controller}")
    elif job.ranks:
        told = Text("its controller is gone", style="yellow")
        told.append(
            ": it ends when the servers' leases do, or with the next `controller apply` or "
            "`controller destroy`",
            style="default",
        )
        console.print(told)
    for line in about_others(job.others):
        console.print(Text(visible_lines(line, indent="  "), style="yellow"))
    if job.checkpoint_path is not None:
        where = visible(job.checkpoint_path)
        console.print(f"last checkpoint: after {job.checkpoint_step} steps, {where}")
    for problem in job.problems:
        console.print(Text(visible_lines(problem, indent="  "), style="yellow"))


def _drift_lines(drift: DriftState | None) -> list[str]:
    """Tells what others changed since the agent started; returns nothing where it saw no change."""
    if drift is None or not drift.drifts:
        return []
    times = "once" if drift.drifts == 1 else f"{drift.drifts} times"
    line = f"others changed what is in force {times}; "
    if drift.last_heal_unix is None:
        line += "nothing was put back"
    else:
        line += f"put back {drift.heals}, last {time.time() - drift.last_heal_unix:.0f} s ago"
    if drift.since_unix is not None:
        line += f"; as it is now for {time.time() - drift.since_unix:.0f} s"
        if drift.policy == "report":
            line += " (the plan says `drift: report`, so the agent puts nothing back)"
    return [line, *drift.notes]
