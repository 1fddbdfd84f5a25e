"""Merges the traces that ranks wrote, and the predicted one, into one file."""

from __future__ import annotations

from pathlib import Path

from placewire.controller.compile.ranks import trace_spec
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.measured.optimizer_process import (
    OPTIMIZER_PROGRAM,
    Say,
    run_relayed,
)
from placewire.controller.errors import PlacewireError
from placewire.controller.plan.plan import Plan


async def merge_traces(plan: Plan, decision: PlacementDecision, say: Say) -> Path | None:
    """Returns the file; None where the job was not traced, its ranks' files are not on this machine
    (as they are in a lab), or they cannot be joined. An error is only told, because the job has
    already run."""
    trace = trace_spec(plan.job)
    if trace is None:
        return None
    ranks = [trace.file_of(rank) for rank in range(len(decision.placement.devices_used))]
    out = Path(trace.folder) / "trace.json"
    command = ["trace", str(decision.scored_file), str(decision.placement_file), "--merge"]
    if missing := [file for file in ranks if not file.is_file()]:
        say(f"trace: {missing[0]} is on its server; copy all ranks' files to one machine and run")
        say(f"  optimizer {' '.join(command)} RANK_FILES --out {out}")
        return None
    files = [str(file) for file in ranks]
    try:
        await run_relayed([*OPTIMIZER_PROGRAM, *command, *files, "--out", str(out)], say)
    except PlacewireError as error:
        say(f"trace: the ranks' files could not be joined: {error}")
        return None
    say(f"trace: {out}, to be opened in ui.perfetto.dev")
    return out
