"""The traces that ranks wrote, beside what was predicted for them, in one file."""

from __future__ import annotations

import sys
from pathlib import Path

from placewire.controller.compile.ranks import trace_spec
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.measured.optimizer_process import Say, run_relayed
from placewire.controller.errors import PlacewireError
from placewire.controller.plan.plan import Plan


async def merge_traces(plan: Plan, decision: PlacementDecision, say: Say) -> Path | None:
    """The file, where the job was traced and its ranks wrote on this machine, as in a lab. What
    goes wrong here is only said: the job has run."""
    trace = trace_spec(plan.job)
    if trace is None:
        return None
    ranks = [trace.file_of(rank) for rank in range(len(decision.placement.devices_used))]
    out = Path(trace.folder) / "trace.json"
    command = ["trace", str(decision.scored_file), str(decision.placement_file), "--merge"]
    if missing := [file for file in ranks if not file.is_file()]:
        say(f"trace: {missing[0]} is on its server; with all ranks' files at hand, join them by")
        say(f"  optimizer {' '.join(command)} RANK_FILES --out {out}")
        return None
    files = [str(file) for file in ranks]
    try:
        await run_relayed(
            [sys.executable, "-m", "placewire.optimizer.cli", *command, *files, "--out", str(out)],
            say,
        )
    except PlacewireError as error:
        say(f"trace: the ranks' files could not be joined: {error}")
        return None
    say(f"trace: {out}, for ui.perfetto.dev")
    return out
