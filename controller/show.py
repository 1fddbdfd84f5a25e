"""What people see: stages with elapsed time, the diff, tables that fit 100 columns, the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent.contract.job import Failed, Finished, RankEvent, Resumed, Saved, Started, StepDone
from agent.contract.measurement import LinkMeasurement
from agent.contract.messages import Observation, Previewed, Verified
from agent.contract.state import Change, DriftState
from controller.decide import Decision
from controller.measured.table import calibrated_table
from controller.report import CalibratedRow, RunReport
from optimizer.quantities import format_bits_per_second, format_bytes, format_seconds

if TYPE_CHECKING:
    from controller.job_status import JobStatus
    from optimizer.placement import Placement

_STAGES = {
    "agents": "waiting for every agent",
    "decide": "deciding placement and rates",
    "preview": "asking every server what would change",
    "stage": "staging on every server, under a lease",
    "measure": "measuring all promised rates at once",
    "calibrate": "measuring what messages pay through the job's own backend",
    "job": "running the job",
}
_SINGULAR = {"addresses": "address"}
_MARKS = {"add": ("+", "green"), "replace": ("~", "yellow"), "remove": ("-", "red")}
# A server's diff is shown in full up to here; then by collection, unless asked for all of it.
_FULL_DIFF_LINES = 60
# Where there is no terminal to ask.
_WIDTH = 100


def console(*, to_error: bool = False) -> Console:
    made = Console(stderr=to_error, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made.width = _WIDTH
    return made


class Show:
    """to_error: everything goes to standard error, so that standard output stays JSON."""

    def __init__(self, *, to_error: bool = False, every_change: bool = True) -> None:
        self.console = console(to_error=to_error)
        self._every_change = every_change
        self._began = time.monotonic()
        self._last_step = -1

    def stage(self, name: str) -> None:
        self.say(f"[bold]{_STAGES[name]}[/bold]")

    def say(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self.console.print(f"[dim]{elapsed:6.1f} s[/dim]  {text}")

    def progress(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        line = Text(f"{elapsed:6.1f} s  ", style="dim")
        self.console.print(line + Text("  " + text[:90], style=""))

    def decision(self, decision: Decision) -> None:
        placement = decision.placement
        self.console.print()
        self.console.print(_placement_table(placement))
        notes = decision.graph_notes
        for line in [*why(placement), *where_data_is(placement, notes), *beside_tensors(notes)]:
            self.console.print("  " + line)
        if len(decision.compared) > 1:
            self.console.print(_considered_table(decision))
        self.console.print()

    def changes(self, previewed: Mapping[str, Previewed]) -> None:
        total = sum(len(p.changes) for p in previewed.values())
        if total == 0:
            self.say(f"0 changes on every server ({', '.join(previewed)}): it is as the plan says")
            return
        for server, preview in previewed.items():
            count = Counter[str](change.action for change in preview.changes)
            summary = ", ".join(f"{count[a]} to {a}" for a in _MARKS if count[a]) or "0 changes"
            self.console.print(f"[bold]{server}[/bold]: {summary}")
            full = self._every_change and len(preview.changes) <= _FULL_DIFF_LINES
            for line in diff_lines(preview.changes) if full else _by_collection(preview.changes):
                self.console.print(line)
        self.console.print()

    def links(self, links: Sequence[LinkMeasurement]) -> None:
        if not links:
            self.say("no rate is promised between servers; nothing to measure")
            return
        table = Table(title="Promised and measured payload rates, Mbit/s", title_justify="left")
        # Only names give way where the table would be too wide, and they keep every character.
        for heading in ("from", "to", "NIC"):
            table.add_column(heading, overflow="fold")
        for heading in ("queue", "HTB rate", "promised", "measured", "off by", ""):
            table.add_column(heading, justify="right", no_wrap=True)
        for m in links:
            off = m.measured_bits_per_second / m.promised_bits_per_second - 1
            table.add_row(
                m.source, m.destination, m.nic, str(m.queue_id),
                f"{m.wire_bits_per_second / 1e6:.2f}",
                f"{m.promised_bits_per_second / 1e6:.2f}",
                f"{m.measured_bits_per_second / 1e6:.2f}",
                f"{off:+.1%}",
                _verdict(m),
            )  # fmt: skip
        self.console.print(table)
        for m in links:
            if m.error:
                where = f"{m.source} to {m.destination} on {m.nic}"
                self.console.print(Text(f"  {where}: {' '.join(m.error.split())}", style="red"))

    def calibrated(self, rows: Sequence[CalibratedRow]) -> None:
        if rows:
            self.console.print(calibrated_table(rows))

    def event(self, event: RankEvent) -> None:
        if isinstance(event, Started):
            self.progress(f"rank {event.rank} runs, pid {event.pid}")
            for note in event.notes:
                self.progress(f"  {note}")
        elif isinstance(event, StepDone) and (
            event.loss is not None or event.step > self._last_step
        ):
            self._last_step = max(self._last_step, event.step)
            loss = f", loss {event.loss:.6f}" if event.loss is not None else ""
            self.progress(f"step {event.step}: {event.seconds:.3f} s{loss}")
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
        elif isinstance(event, Failed):
            self.progress(f"rank {event.rank} failed: {event.what}")

    def report(self, report: RunReport) -> None:
        self.console.print()
        if report.traffic:
            self.console.print(_traffic_table(report))
        table = Table(title=f"{report.plan_name}: predicted and measured", title_justify="left")
        for heading in ("", "step", "what"):
            table.add_column(heading)
        table.add_row("bound", format_seconds(report.bound_seconds), "no placement can be faster")
        table.add_row(
            "predicted",
            format_seconds(report.predicted_step_seconds),
            f"{len(report.devices)} devices, {report.sharing}, gap {report.gap:.1%}",
        )
        if report.measured_step_seconds is not None and report.prediction_error is not None:
            steps = len(report.step_seconds)
            table.add_row(
                "measured",
                format_seconds(report.measured_step_seconds),
                f"median of {max(1, steps - 1)} steps, {report.prediction_error:+.1%} off",
            )
        if report.single_device_seconds is not None:
            table.add_row("one device", format_seconds(report.single_device_seconds), "predicted")
        self.console.print(table)
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

    def job(self, job: JobStatus) -> None:
        for rank in job.ranks:
            self.console.print(
                f"a rank runs on {rank.server}: pid {rank.pid}, for {rank.seconds:.0f} s"
            )
        if job.ranks and job.controller is not None:
            self.console.print(f"its controller: {job.controller}")
        elif job.ranks:
            self.console.print(
                "[yellow]its controller is gone[/yellow]: it ends when the servers' leases do, or "
                "with the next `controller apply` or `controller destroy`"
            )
        if job.checkpoint_path is not None:
            self.console.print(
                f"last checkpoint: after {job.checkpoint_step} steps, {job.checkpoint_path}"
            )
        if job.problem:
            self.console.print(f"[yellow]checkpoints:[/yellow] {job.problem}")

    def status(
        self, observations: Mapping[str, Observation | None], verified: Mapping[str, Verified]
    ) -> None:
        """verified: what was read back and compared, of servers where something is in force."""
        table = Table(title="Servers", title_justify="left")
        for heading in ("server", "phase", "plan", "decision", "generation", "lease", "verified"):
            table.add_column(heading)
        for server, observation in observations.items():
            if observation is None:
                table.add_row(server, "[red]unreachable[/red]", "", "", "", "", "")
                continue
            lease = observation.lease
            left = "" if lease.expires_unix is None else f"{lease.expires_unix - time.time():.0f} s"
            table.add_row(
                server, lease.phase, lease.plan_name or "", (lease.plan_digest or "")[:12],
                str(lease.generation), left, _deviation_summary(verified.get(server)),
            )  # fmt: skip
        self.console.print(table)
        for server, found in verified.items():
            for line in diff_lines(found.deviations):
                self.console.print(Text(f"{server}:") + line)
            for problem in found.problems:
                self.console.print(f"{server}: {problem}")
            for said in _drift_lines(found.drift):
                self.console.print(Text(f"{server}: {said}"))
        digests = {o.lease.plan_digest for o in observations.values() if o is not None}
        if len(digests) > 1:
            self.console.print("[yellow]mixed: the servers are on different decisions[/yellow]")


def _deviation_summary(found: Verified | None) -> str:
    if found is None:
        return ""
    count = len(found.deviations) + len(found.problems)
    return f"[red]{count} off[/red]" if count else "[green]as decided[/green]"


def _drift_lines(drift: DriftState | None) -> list[str]:
    """What others changed, seen by the agent since it started; none where it saw nothing."""
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
            line += " (the plan says `drift: report`: nothing is put back by itself)"
    return [line, *drift.notes]


def _verdict(link: LinkMeasurement) -> Text:
    if link.error:
        return Text("failed", style="red")
    return Text("kept", style="green") if link.within_tolerance else Text("broken", style="red")


def diff_lines(changes: Sequence[Change]) -> list[Text]:
    """One line a change: + added, ~ replaced, - removed."""
    lines = []
    for change in changes:
        mark, colour = _MARKS[change.action]
        value = change.after if change.action != "remove" else change.before
        text = (
            f"  {mark} {_SINGULAR.get(change.collection, change.collection[:-1]):<10} {change.key}"
        )
        detail = _detail(value, change.key)
        lines.append(Text(f"{text}  {detail}"[:100], style=colour))
    return lines


def _detail(value: str | None, key: str) -> str:
    """The entry's fields that its key does not already say."""
    import json

    if value is None:
        return ""
    try:
        fields = json.loads(value)
    except ValueError:
        return value
    words = []
    for name, field in fields.items():
        if field is None or str(field) in key.split():
            continue
        if name.endswith("_bits_per_second"):
            words.append(f"{name.removesuffix('_bits_per_second')} {format_bits_per_second(field)}")
        elif name.endswith("_bits"):
            words.append(f"{name.removesuffix('_bits')} {format_bytes(field / 8)}")
        else:
            words.append(f"{name} {field}")
    return ", ".join(words)


def _by_collection(changes: Sequence[Change]) -> list[Text]:
    counts = Counter((change.action, change.collection) for change in changes)
    return [
        Text(f"  {_MARKS[action][0]} {count} {collection}", style=_MARKS[action][1])
        for (action, collection), count in counts.items()
    ]


def why(placement: Placement) -> list[str]:
    """The decision in sentences: how far from the bound, against one device, and what crosses."""
    step, single = placement.step_seconds, placement.single_device_seconds
    lines = [
        f"predicted step {format_seconds(step)}; no placement can do better than "
        f"{format_seconds(placement.bound_seconds)} (gap {placement.gap:.1%})"
    ]
    used = len(placement.devices_used)
    if single is None:
        lines.append("no single device can hold the model: it must be distributed")
    elif placement.engine == "single":
        lines.append("one device, because the plan asks for the best single one")
    elif used == 1:
        lines.append("do not distribute this: one device is the fastest that was found")
    else:
        lines.append(
            f"the best single device would take {format_seconds(single)}: {single / step:.2f}×"
        )
    sent = sum(message.bytes for message in placement.messages)
    pairs = len(placement.server_pairs)
    lines.append(
        f"{len(placement.messages)} messages, {format_bytes(sent)} a step between {pairs} pairs of "
        f"servers; network sharing: {placement.sharing}"
    )
    return lines


def where_data_is(placement: Placement, notes: Mapping[str, Any]) -> list[str]:
    """Which rank reports the loss and which read the batch; notes: those of a captured graph."""
    if not {"loss", "inputs"} <= set(notes):
        return []
    readers: dict[str, list[str]] = {}
    for name in notes["inputs"]:
        readers.setdefault(placement.operators[name], []).append(name)
    read = "; ".join(f"{', '.join(names)} on {device}" for device, names in readers.items())
    sent = sum(m.bytes for m in placement.messages if m.producer in notes["inputs"])
    return [
        f"the loss is computed on {placement.operators[notes['loss']]}",
        f"the batch is read where its inputs are: {read}; {format_bytes(sent)} of it are sent on",
    ]


def beside_tensors(notes: Mapping[str, Any]) -> list[str]:
    """What a rank needs beside its device's predicted peak; notes: those of a profile."""
    measured = [of.get("program_bytes") for of in notes.get("profiles", {"": notes}).values()]
    program = max((one for one in measured if one is not None), default=None)
    if program is None:
        return []
    return [f"beside the tensors on its device a rank's program takes {format_bytes(program)}"]


def _of_steps(event: Finished) -> str:
    """Where it could be told; the rest is the rank's program."""
    if event.step_memory_bytes is None:
        return ""
    return f"; its steps' tensors {format_bytes(event.step_memory_bytes)}"


def _placement_table(placement: Placement) -> Table:
    count = Counter(placement.operators.values())
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for message in placement.messages:
        sent[message.source] += message.bytes
        received[message.destination] += message.bytes
    table = Table(title=f"Placement of {len(placement.operators)} operators", title_justify="left")
    table.add_column("device")
    for heading in ("operators", "sends a step", "receives a step"):
        table.add_column(heading, justify="right")
    for device in placement.cluster.device_names:
        table.add_row(
            device, str(count[device]), format_bytes(sent[device]), format_bytes(received[device])
        )
    return table


def _considered_table(decision: Decision) -> Table:
    table = Table(title="Sharings considered, each with its own placement", title_justify="left")
    for heading in ("sharing", "rails", "predicted step", "devices", ""):
        table.add_column(heading)
    for placement in decision.compared:
        table.add_row(
            placement.sharing,
            ", ".join(placement.cluster.rails),
            format_seconds(placement.step_seconds),
            str(len(placement.devices_used)),
            "taken" if placement is decision.placement else "",
        )
    return table


def _traffic_table(report: RunReport) -> Table:
    table = Table(title="Bytes of a step, planned and sent", title_justify="left")
    for heading in ("from", "to", "rail"):
        table.add_column(heading)
    for heading in ("planned", "sent"):
        table.add_column(heading, justify="right")
    for row in report.traffic:
        table.add_row(
            row.source, row.destination, row.rail,
            format_bytes(row.planned_bytes), format_bytes(row.sent_bytes),
        )  # fmt: skip
    return table
