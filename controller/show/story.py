"""The story of a command as it goes: stages with elapsed time, then what came of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.agent.contract.messages import Observation, Previewed, ReadBackResult
from placewire.controller.decide.traffic import TrafficDecision
from placewire.controller.provision.progress import Began, Progress
from placewire.controller.records.report import CalibratedRow, RunReport
from placewire.controller.records.run_log import rank_mark
from placewire.controller.show.changes import previewed_lines
from placewire.controller.show.console import console
from placewire.controller.show.outcomes import progress_line
from placewire.controller.show.placements import (
    beside_tensors,
    considered_table,
    placement_table,
    where_data_is,
    why,
)
from placewire.controller.show.rates import calibrated_table, link_errors, links_table
from placewire.controller.show.reports import rails_table, steps_table, traffic_table
from placewire.controller.show.status import show_job, show_servers
from placewire.controller.show.steps import Step, Steps
from placewire.controller.verify.rail_use import REMEDY, complaints
from placewire.job.contract.specification import (
    Carried,
    Failed,
    Finished,
    RankEvent,
    Resumed,
    Saved,
    Started,
    StepDone,
)
from placewire.optimizer.quantities import format_bytes

if TYPE_CHECKING:
    from placewire.controller.decide.decide import PlacementDecision
    from placewire.controller.launch.job_status import JobStatus
    from placewire.optimizer.network.script_allocation import ScriptAllocation

_STAGES = {
    "agents": "waiting for every agent",
    "decide": "deciding placement and rates",
    "preview": "asking every server what would change",
    "stage": "staging on every server, under a lease",
    "measure": "measuring all promised rates at once",
    "calibrate": "measuring what messages pay through the job's own backend",
    "job": "running the job",
    "install": "installing what is missing on every server",
    "enrol": "first certificates, each for a token",
    "remove": "removing what was installed",
}

_CARRIED_EVERY_SECONDS = 60.0


class Show:
    """to_error: everything goes to standard error, so that standard output stays JSON."""

    def __init__(self, *, to_error: bool = False, every_change: bool = True) -> None:
        self.console = console(to_error=to_error)
        self._every_change = every_change
        self._began = time.monotonic()
        self._steps = Steps(ranks=1)
        self._told_carried: dict[int, float] = {}
        self._provisioning: Progress | None = None

    def stage(self, name: str) -> None:
        self.say(f"[bold]{_STAGES[name]}[/bold]")

    def say(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self.console.print(f"[dim]{elapsed:6.1f} s[/dim]  {text}")

    def plain(self, text: str) -> None:
        """What others wrote may be in it: nothing of it is markup."""
        elapsed = time.monotonic() - self._began
        self.console.print(Text(f"{elapsed:6.1f} s  ", style="dim") + Text(text))

    def progress(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        line = Text(f"{elapsed:6.1f} s  ", style="dim")
        self.console.print(line + Text("  " + text[:90], style=""))

    def provisioning(self, told: Progress) -> None:
        if (line := progress_line(told)) is not None and told != self._provisioning:
            self.progress(line)
        self._provisioning = told if isinstance(told, Began) else self._provisioning

    def decision(self, decision: PlacementDecision | TrafficDecision) -> None:
        if isinstance(decision, TrafficDecision):
            self._traffic(decision.allocation)
            return
        placement, notes = decision.placement, decision.graph_notes
        self._steps = Steps(len(placement.devices_used))
        self.console.print()
        self.console.print(placement_table(placement))
        for line in [*why(placement), *where_data_is(placement, notes), *beside_tensors(notes)]:
            self.console.print("  " + line)
        if len(decision.compared) > 1:
            self.console.print(considered_table(decision))
        self.console.print()

    def _traffic(self, allocation: ScriptAllocation) -> None:
        """Of a job that places itself."""
        pairs = len({(source, destination) for source, destination, _ in allocation.talks})
        rails = ", ".join(allocation.cluster.rails)
        self.say(
            f"the job places itself: {pairs} pairs of servers send over rails {rails}; network "
            f"sharing: {allocation.sharing}"
        )

    def changes(self, previewed: Mapping[str, Previewed]) -> None:
        if not any(preview.changes for preview in previewed.values()):
            self.say(f"0 changes on every server ({', '.join(previewed)}): it is as the plan says")
            return
        for line in previewed_lines(previewed, every_change=self._every_change):
            self.console.print(line)
        self.console.print()

    def links(self, links: Sequence[LinkMeasurement]) -> None:
        if not links:
            self.say("no rate is promised between servers; nothing to measure")
            return
        self.console.print(links_table(links))
        for line in link_errors(links):
            self.console.print(line)

    def calibrated(self, rows: Sequence[CalibratedRow]) -> None:
        if rows:
            self.console.print(calibrated_table(rows))

    def event(self, event: RankEvent) -> None:
        if isinstance(event, StepDone):
            if (step := self._steps.ended(event)) is not None:
                self.progress(_of_step(step))
        elif isinstance(event, Started):
            self.progress(f"rank {event.rank} runs, pid {event.pid}")
            for note in event.notes:
                self.progress(f"  {note}")
        elif isinstance(event, Resumed):
            self.progress(f"resumed after {event.step} steps, from {event.path}")
            for note in event.notes:
                self.progress(f"  {note}")
        elif isinstance(event, Saved):
            self.progress(
                f"checkpoint after {event.step} steps: {format_bytes(event.bytes)} in "
                f"{event.seconds:.2f} s"
            )
        elif isinstance(event, Finished):
            self.progress(
                f"rank {event.rank} done, {format_bytes(event.peak_memory_bytes)} at most"
                + _of_steps(event)
            )
        elif isinstance(event, Carried):
            self._carried(event)
        elif isinstance(event, Failed):
            self.progress(f"rank {event.rank} failed: {event.what}")

    def _carried(self, event: Carried) -> None:
        """Now and then: what it comes to is in the report."""
        if event.seconds - self._told_carried.get(event.rank, 0.0) >= _CARRIED_EVERY_SECONDS:
            self._told_carried[event.rank] = event.seconds
            sent = ", ".join(f"{format_bytes(b)} on {r}" for r, b in event.sent_bytes.items())
            self.progress(f"rank {event.rank}'s server has sent {sent}")

    def printed(self, rank: int, text: str) -> None:
        """By a rank, beside its events."""
        self.progress(rank_mark(rank) + text)

    def report(self, report: RunReport) -> None:
        self.console.print()
        if report.rails:
            self.console.print(rails_table(report))
            for line in complaints(report.rails):
                self.say(f"[bold red]{line}[/bold red]")
            if complaints(report.rails):
                self.say(REMEDY)
        if report.traffic:
            self.console.print(traffic_table(report))
        if report.predicted_step_seconds is not None:
            self.console.print(steps_table(report))
        self._checkpoint(report)
        changed = ", ".join(f"{server} {count}" for server, count in report.changes.items())
        kept = (
            "stays as it is"
            if report.network == "kept"
            else "is back on its former state, read back"
        )
        self.say(f"changes made: {changed}; the network {kept}")

    def failed(self, report: RunReport) -> None:
        """What is left of a job that failed."""
        done = report.first_step + len(report.step_seconds)
        self.say(f"the job ended after {done} steps")
        self._checkpoint(report)

    def _checkpoint(self, report: RunReport) -> None:
        if report.checkpoint is not None:
            step, path = report.checkpoint.step, report.checkpoint.path
            self.say(f"last checkpoint: after {step} steps, {path}")

    def status(
        self,
        observations: Mapping[str, Observation | None],
        results: Mapping[str, ReadBackResult],
        job: JobStatus | None = None,
    ) -> None:
        show_servers(self.console, observations, results)
        if job is not None:
            show_job(self.console, job)


def _of_step(step: Step) -> str:
    loss = "" if step.loss is None else f", loss {step.loss:.6f}"
    return f"step {step.number}: {step.seconds:.3f} s{loss}"


def _of_steps(event: Finished) -> str:
    """Where it could be told; the rest is the rank's program."""
    if event.step_memory_bytes is None:
        return ""
    return f"; its steps' tensors {format_bytes(event.step_memory_bytes)}"
