"""Runs one rank. Exits with 0 when done, 1 on failure, 2 where SPEC.json cannot be read."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from placewire.frozen import first_mistake
from placewire.job.contract.checkpoint import CheckpointError
from placewire.job.contract.specification import Failed, RankSpec, ScriptSpec, parse_spec
from placewire.job.script.descendants import adopt_orphans, kill_descendants
from placewire.job.supervision.events import Events, end_on_signals
from placewire.job.supervision.lease_deadline import follow_hold
from placewire.optimizer.capture.allocator import prepare_allocator

# For processes that the model started to end.
_END_SECONDS = 2.0


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\n\nusage: python -m placewire.job SPEC.json", file=sys.stderr)
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    try:
        spec = parse_spec(Path(arguments[0]).read_bytes())
    except OSError as error:
        print(f"error: {arguments[0]}: {error}", file=sys.stderr)
        return 2
    except ValidationError as error:
        # Without what it has there: the variables of a script are in it.
        print(f"error: {arguments[0]}: {first_mistake(error)}", file=sys.stderr)
        return 2
    events = Events()
    end_on_signals(events, spec.rank)
    follow_hold(events, spec.rank, spec.held_seconds)
    return run(spec, events)


def run(spec: RankSpec | ScriptSpec, events: Events) -> int:
    if isinstance(spec, ScriptSpec):
        return _run(spec, events)
    prepare_allocator()
    # What the model starts ends with the rank, also where it leaves its session or its parent.
    with suppress(OSError):  # another process adopts it then
        adopt_orphans()
    events.at_end = partial(kill_descendants, _END_SECONDS)
    try:
        return _run(spec, events)
    finally:
        kill_descendants(_END_SECONDS)


def _run(spec: RankSpec | ScriptSpec, events: Events) -> int:
    from placewire.job.errors import JobError
    from placewire.job.transport.egress import require_on_rails

    try:
        require_on_rails(spec.rail_interfaces)
        if isinstance(spec, ScriptSpec):
            from placewire.job.script.script import run_script

            return run_script(spec, events)
        if spec.kind == "calibrate":
            from placewire.job.calibration.calibrate import run_calibration

            run_calibration(spec, events.emit, events.fail)
        else:
            from placewire.job.placed.runtime import run_rank

            run_rank(spec, events.emit, events.fail)
    except (JobError, CheckpointError) as error:
        events.emit(Failed(rank=spec.rank, what=error.what, remedy=error.remedy))
        return 1
    except (ValueError, OSError) as error:
        events.emit(Failed(rank=spec.rank, what=str(error)))
        return 1
    except Exception as error:
        # Not foreseen: the launcher still needs an event, and whoever debugs this the traceback.
        traceback.print_exc()
        events.emit(Failed(rank=spec.rank, what=f"{type(error).__name__}: {error}"))
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The connections of a lost peer could delay an ordinary exit for minutes.
    os._exit(code)
