"""Merges the traces that ranks wrote, and the predicted one, into one file."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from placewire.controller.abandonable import abandonable
from placewire.controller.compile.ranks import trace_spec
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.measured.optimizer_process import (
    OPTIMIZER_PROGRAM,
    Say,
    run_relayed,
)
from placewire.controller.errors import PlacewireError
from placewire.controller.launch.launcher import Launcher
from placewire.controller.plan.plan import Plan
from placewire.optimizer.device_names import server_of

_LONGEST_SECONDS = 300.0
# The ranks' user runs this program, which writes its standard input, the merged trace, to a file.
_WRITE = (
    "-c",
    "import pathlib, sys; from placewire.optimizer.graph.json_file import replace_file; "
    "replace_file(pathlib.Path(sys.argv[1]), sys.stdin.buffer.read())",
)


async def merge_traces(
    plan: Plan, decision: PlacementDecision, launcher: Launcher, say: Say
) -> Path | None:
    """Returns the file; None where the job was not traced, its ranks' files are not on this machine
    (as they are in a lab), or they cannot be joined. An error is only told, because the job has
    already run."""
    trace = trace_spec(plan.job)
    if trace is None:
        return None
    devices = decision.placement.devices_used
    ranks = [trace.file_of(rank) for rank in range(len(devices))]
    out = Path(trace.folder) / "trace.json"
    command = ["trace", str(decision.scored_file), str(decision.placement_file), "--merge"]
    words = [*OPTIMIZER_PROGRAM, *command, *(str(file) for file in ranks)]
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            # A folder that a dead server exports answers nobody, and leases are renewed meanwhile.
            if missing := await abandonable(partial(_missing, ranks)):
                where = f"trace: {missing[0]} is on its server"
                say(f"{where}; copy all ranks' files to one machine and run")
                say(f"  optimizer {' '.join(command)} RANK_FILES --out {out}")
                return None
            with tempfile.TemporaryDirectory(prefix="placewire-trace-") as own:
                merged = Path(own, "trace.json")
                await run_relayed([*words, "--out", str(merged)], say)
                await _write(launcher, server_of(devices[0]), out, merged.read_bytes(), say)
    except TimeoutError:
        say(f"trace: the ranks' files were not joined within {_LONGEST_SECONDS:.0f} s")
        return None
    except (PlacewireError, OSError) as error:
        say(f"trace: the ranks' files could not be joined: {error}")
        return None
    say(f"trace: {out}, to be opened in ui.perfetto.dev")
    return out


def _missing(files: Sequence[Path]) -> list[Path]:
    """Raises OSError where this user may not look."""
    return [file for file in files if not file.is_file()]


async def _write(launcher: Launcher, server: str, out: Path, merged: bytes, say: Say) -> None:
    """Writes the merged trace as the ranks' user, whose folder it is: whoever runs this process has
    more rights, as root in a lab, and must not write where a link of that user's leads. Raises
    PlacewireError."""
    ended = await launcher.run(
        server, [*_WRITE, str(out)], given=merged, on_line=lambda line: say("  " + line)
    )
    if ended.status != 0:
        raise PlacewireError(f"{out} could not be written by the ranks' user", where=server)
