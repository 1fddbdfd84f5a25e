"""Prints the progress of a command: stages with the elapsed time, and the result of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.text import Text

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.agent.contract.messages import Observation, Previewed, ReadBackResult
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.traffic import TrafficDecision
from placewire.controller.few_names import counts_in_words
from placewire.controller.launch.job_status import JobStatus
from placewire.controller.provision.progress import Began, Progress
from placewire.controller.records.joined_steps import Steps, reported
from placewire.controller.records.report import NOT_AS_BEFORE, CalibratedRow, RunReport
from placewire.controller.records.run_log import rank_mark
from placewire.controller.show import placements, rates, reports
from placewire.controller.show.changes import previewed_lines
from placewire.controller.show.console import console
from placewire.controller.show.outcomes import progress_line
from placewire.controller.show.sent_by_script import SentByScript
from placewire.controller.show.status import show_job, show_servers
from placewire.controller.verify.rail_use import (
    NEXT_TO_NOTHING,
    REMEDY,
    complaints,
    trained_together,
)
from placewire.job.contract.specification import (
    Carried,
    Failed,
    Finished,
    Noted,
    RankEvent,
    Resumed,
    Saved,
    Started,
    StepDone,
    Validated,
)
from placewire.optimizer.quantities import format_bytes
from placewire.visible import visible, visible_lines

_STAGES = {
    "agents": "waiting for every agent",
    "decide": "deciding placement and rates",
    "preview": "asking every server what would change",
    "stage": "staging on every server, under a lease",
    "measure": "measuring all promised rates at once",
    "calibrate": "measuring what messages cost through the job's own backend",
    "job": "running the job",
    "install": "installing what is missing on every server",
    "enrol": "enrolling agents that need a certificate, each with a token",
    "remove": "removing what was installed",
}


class Show:
    """to_error: prints on standard error, so that standard output has nothing but JSON.
    every_change: shows each change of a server, each rate, each pair's bytes, and each server's
    status, where they are many, too."""

    def __init__(self, *, to_error: bool = False, every_change: bool = True) -> None:
        self.console = console(to_error=to_error)
        self._every_change = every_change
        self._began = time.monotonic()
        self._steps = Steps(ranks=1)
        # Nothing is told of a script before it is known on how many servers it runs.
        self._sent = SentByScript(servers=1)
        self._provisioning: Progress | None = None

    def stage(self, name: str) -> None:
        self.say(_STAGES[name], style="bold")

    def say(self, text: str, *, style: str = "") -> None:
        """text: may have parts that others wrote; none of it is taken for markup."""
        self._print(Text(visible_lines(text, indent="  "), style=style))

    def progress(self, text: str) -> None:
        """Prints one line, whole: it may be why something failed. A terminal wraps it."""
        self._print(Text(f"  {visible(text)}"))

    def _print(self, text: Text) -> None:
        elapsed = time.monotonic() - self._began
        self.console.print(Text(f"{elapsed:6.1f} s  ", style="dim") + text)

    def provisioning(self, told: Progress) -> None:
        if (line := progress_line(told)) is not None and told != self._provisioning:
            self.progress(line)
        self._provisioning = told if isinstance(told, Began) else self._provisioning

    def decision(self, decision: PlacementDecision | TrafficDecision) -> None:
        if isinstance(decision, TrafficDecision):
            allocation = decision.allocation
            servers, rails = allocation.cluster.servers, ", ".join(allocation.cluster.rails)
            self._sent = SentByScript(len(servers))
            pairs = len({(source, destination) for source, destination, _ in allocation.talks})
            sends = f"{pairs} pairs of servers send over rails {rails}"
            if len(servers) == 1:
                sends = "it runs on one server, which sends nothing to others"
            self.say(f"the job places itself: {sends}; network sharing: {allocation.sharing}")
            return
        placement, notes = decision.placement, decision.graph_notes
        self._steps = Steps(len(placement.devices_used))
        self.console.print()
        self.console.print(placements.placement_table(placement))
        where = placements.where_data_is(placement, notes)
        about = [*placements.beside_tensors(notes), *placements.kept_in_python(notes)]
        for line in [*placements.why(placement), *where, *about]:
            self.console.print("  " + visible(line))
        if placement.variants:
            self.console.print(placements.variants_table(placement))
        if decision.buckets:
            self.console.print(placements.buckets_table(decision))
        if len(decision.compared) > 1:
            self.console.print(placements.considered_table(decision))
        self.console.print()

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
        for made in rates.links_tables(links, every_link=self._every_change):
            self.console.print(made)
        for line in rates.link_errors(links):
            self.console.print(line)

    def calibrated(self, rows: Sequence[CalibratedRow]) -> None:
        if rows:
            self.console.print(rates.calibrated_table(rows))

    def event(self, event: RankEvent) -> None:
        if isinstance(event, StepDone):
            if (step := self._steps.ended(event)) is not None:
                self.say(f"  {step}")
        elif isinstance(event, Started | Resumed):
            self.progress(
                f"rank {event.rank} runs, pid {event.pid}"
                if isinstance(event, Started)
                else f"resumed after {event.step} steps, from {event.path}"
            )
            for note in event.notes:
                self.say(f"    {note}")
        elif isinstance(event, Noted):
            for note in event.notes:
                self.say(f"rank {event.rank}: {note}")
        elif isinstance(event, Validated):
            batches = f"{event.batches} batch{'es' if event.batches > 1 else ''}"
            self.say(
                f"  validation after {event.step} steps: {batches} in {event.seconds:.2f} s"
                + (", loss not finite" if event.loss is None else "")
                + reported(event.loss, event.metrics)
            )
        elif isinstance(event, Saved):
            self.progress(
                f"checkpoint after {event.step} steps: {format_bytes(event.bytes)} in "
                f"{event.seconds:.2f} s"
            )
        elif isinstance(event, Finished):
            self.progress(f"rank {event.rank} done, {_memory(event)}")
        elif isinstance(event, Carried):
            for line in self._sent.told(event):
                self.say(line)
        elif isinstance(event, Failed):
            self.progress(f"rank {event.rank} failed: {event.what}")

    def printed(self, rank: int, text: str) -> None:
        """Prints what a rank printed beside its events, whole: a line of metrics is long."""
        self._print(Text("  " + visible(rank_mark(rank) + text)))

    def report(self, report: RunReport) -> None:
        self._tables(report)
        self.notes(report.notes)
        self._checkpoint(report)
        changed = counts_in_words(report.changes)
        kept = report.network == "kept"
        now = "stays as it is" if kept else "is back on its former state, read back"
        if not kept and any(note.startswith(NOT_AS_BEFORE) for note in report.notes):
            now += ", but for what is told above"
        self.say(f"changes made: {changed}; the network {now}")

    def failed(self, report: RunReport) -> None:
        """Shows the report of a run that failed, perhaps after its job had come to its end."""
        if report.traffic or any(row.sent_bytes for row in report.rails):
            self._tables(report)
        if report.operators or report.steps_run:
            self.say(f"the job ended after {report.first_step + report.steps_run} steps")
        else:
            self.say("the script did not come to its end")
        self.notes(report.notes)
        self._checkpoint(report)

    def notes(self, notes: Sequence[str]) -> None:
        for note in notes:
            self.say(note)

    def _tables(self, report: RunReport) -> None:
        self.console.print()
        if report.rails:
            self.console.print(reports.rails_table(report))
            for line in (unequal := complaints(report.rails)):
                self.say(line, style="bold red")
            if unequal:
                self.say(REMEDY)
            if report.failure is None and not trained_together(report.rails):
                self.say(NEXT_TO_NOTHING, style="yellow")
        if report.traffic:
            self.console.print(reports.traffic_table(report, every_row=self._every_change))
        if report.buckets:
            self.console.print(reports.buckets_table(report))
        if report.predicted_step_seconds is not None:
            self.console.print(reports.steps_table(report))

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
        every_line = self._every_change
        show_servers(self.console, observations, results, every_line=every_line)
        if job is not None:
            show_job(self.console, job, every_line=every_line)


def _memory(event: Finished) -> str:
    told = f"{format_bytes(event.peak_memory_bytes)} at most"
    if event.step_memory_bytes is not None:
        told += f"; its steps {format_bytes(event.step_memory_bytes)}"
    if event.tensor_memory_bytes is not None:
        told += f", of which tensors {format_bytes(event.tensor_memory_bytes)}"
    return told
