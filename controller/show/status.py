"""Shows what servers have in force, and what is left of a job. Of many servers, those that have the
same share a line."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from placewire.agent.contract.messages import Observation, ReadBackResult
from placewire.agent.contract.state import DriftState
from placewire.controller.few_names import MOST_NAMES, few_names
from placewire.controller.launch.job_status import JobStatus
from placewire.controller.launch.launcher import RunningProgram
from placewire.controller.launch.of_plans import about_others
from placewire.controller.show.changes import lines_of_servers
from placewire.controller.show.console import table
from placewire.visible import visible, visible_lines

# So many sentences about servers are shown, where not every one is to be.
_MOST_LINES = 40
_AS_DECIDED = "as decided"


@dataclass(frozen=True)
class _Row:
    """What the table says of a server, beside numbers that servers need not share."""

    phase: str
    plan: str = ""
    decision: str = ""
    read_back: str = ""


def show_servers(
    console: Console,
    observations: Mapping[str, Observation | None],
    results: Mapping[str, ReadBackResult],
    *,
    every_line: bool = True,
) -> None:
    """observations: None for a silent server. results: of servers with something in force.
    every_line: else servers that have the same share lines, where they are many."""
    console.print(_servers_table(observations, results, every_line=every_line))
    off = {server: found.deviations for server, found in results.items() if found.deviations}
    for line in lines_of_servers(off, every_change=every_line) if off else ():
        console.print(line)
    said: dict[tuple[str, str], list[str]] = {}
    for server, sentence, style in _sentences(observations, results):
        said.setdefault((sentence, style), []).append(server)
    lines = [
        Text(f"{names}: {sentence}", style=style)
        for (sentence, style), servers in said.items()
        for names in (servers if every_line else [few_names(servers)])
    ]
    shown = lines if every_line else lines[:_MOST_LINES]
    for line in shown:
        console.print(line)
    if len(shown) < len(lines):
        console.print(Text(f"{len(lines) - len(shown)} more; --full shows each", style="dim"))
    digests = {o.lease.plan_digest for o in observations.values() if o is not None}
    if len(digests) > 1:
        console.print("mixed: the servers are on different decisions", style="yellow")


def _servers_table(
    observations: Mapping[str, Observation | None],
    results: Mapping[str, ReadBackResult],
    *,
    every_line: bool,
) -> Table:
    made = table(
        "Servers",
        words=("server", "phase", "plan", "decision", "generation", "lease", "read back"),
    )
    alike: dict[object, list[str]] = {}
    for server, observation in observations.items():
        row = _row(observation, results.get(server))
        key = row if not every_line and len(observations) > MOST_NAMES else server
        alike.setdefault(key, []).append(server)
    for servers in alike.values():
        row = _row(observations[servers[0]], results.get(servers[0]))
        leases = [one.lease for server in servers if (one := observations[server]) is not None]
        left = [lease.expires_unix - time.time() for lease in leases
                if lease.expires_unix is not None]  # fmt: skip
        count = f" ({len(servers)} servers)" if len(servers) > MOST_NAMES else ""
        made.add_row(
            few_names(servers) + count,
            Text(row.phase, style="" if leases else "red"), row.plan, row.decision,
            _range([lease.generation for lease in leases]),
            f"{_range(left)} s" if left else "",
            Text(row.read_back, style="green" if row.read_back == _AS_DECIDED else "red"),
        )  # fmt: skip
    return made


def _row(observation: Observation | None, found: ReadBackResult | None) -> _Row:
    if observation is None:
        return _Row("unreachable")
    lease, read_back = observation.lease, ""
    if found is not None:
        off = len(found.deviations) + len(found.problems)
        read_back = f"{off} off" if off else _AS_DECIDED
    return _Row(lease.phase, lease.plan_name or "", (lease.plan_digest or "")[:12], read_back)


def _range(numbers: Sequence[float]) -> str:
    if not numbers:
        return ""
    least, most = f"{min(numbers):.0f}", f"{max(numbers):.0f}"
    return least if least == most else f"{least} to {most}"


def _sentences(
    observations: Mapping[str, Observation | None], results: Mapping[str, ReadBackResult]
) -> Iterator[tuple[str, str, str]]:
    """(server, sentence, style)"""
    for server, found in results.items():
        for said in (*found.problems, *_drift_lines(found.drift)):
            yield server, visible(said), ""
    for server, observation in observations.items():
        if observation is not None:
            # What is in force was read back, with its problems.
            idle_ones = () if server in results else observation.state.problems
            lease = observation.lease
            if lease.detail:
                yield server, visible(lease.detail), "red" if lease.is_unsettled else "yellow"
            for said in (*idle_ones, *lease.owed):
                yield server, visible(said), "red"


def show_job(console: Console, job: JobStatus, *, every_line: bool = True) -> None:
    if every_line or len(job.ranks) <= MOST_NAMES:
        for rank in job.ranks:
            console.print(f"a rank runs on {rank.server}: pid {rank.pid}, for {rank.seconds:.0f} s")
    else:
        console.print(_ranks_in_words(job.ranks))
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


def _ranks_in_words(ranks: Sequence[RunningProgram]) -> str:
    servers = list(dict.fromkeys(rank.server for rank in ranks))
    return (
        f"{len(ranks)} ranks run on {few_names(servers)}, for "
        f"{_range([rank.seconds for rank in ranks])} s; --full shows each"
    )


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
