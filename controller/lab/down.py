"""Removes what a lab's record names, also after a `lab up` that was killed at any point."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from placewire.controller.errors import PlacewireError, RestoreFailed
from placewire.controller.lab import record as records
from placewire.controller.lab.processes import end, processes_of, runs_a_script, strangers_in
from placewire.controller.lab.record import LabRecord, SysctlRecord
from placewire.controller.lab.system import namespace_exists, require_root_and_programs, run_batch
from placewire.job.contract.specification import SCRIPT_GONE_SECONDS


def lab_down(name: str, progress: Callable[[str], None] = lambda text: None) -> None:
    """Raises PlacewireError where there is no such lab, RestoreFailed where something is left."""
    require_root_and_programs()
    with records.exclusive():
        if name not in records.recorded_names():
            raise PlacewireError(
                f"there is no lab {name!r}", where="lab", remedy="`controller lab list` names them"
            )
        record = records.load(name)
        if record is not None:
            remove(record, progress)
        else:  # `lab up` was killed before it made anything, or `lab down` at its very end
            shutil.rmtree(records.directory_of(name))


def remove(record: LabRecord, progress: Callable[[str], None]) -> None:
    """To be called under the lock. Passes over what is gone already."""
    for sysctl in record.sysctls:
        put_back(sysctl)
    # While agents, network and controller are there: a script may save.
    end(filter(runs_a_script, processes_of(record)), SCRIPT_GONE_SECONDS)
    # A daemon may have started a program after it was looked for; now no daemon is left.
    remaining = end(processes_of(record)) or end(processes_of(record))
    left = [f"process {pid}" for pid in remaining]
    for process in record.processes:
        with suppress(ChildProcessError):  # agents are children of whoever made the lab
            os.waitpid(process.pid, os.WNOHANG)
    if strangers := strangers_in(record):
        pids = ", ".join(map(str, strangers))
        progress(f"lab {record.name}: left alone, but its network goes: process {pids}")
    present = [name for name in record.namespaces if namespace_exists(name)]
    if present:
        try:
            run_batch("ip", None, [f"netns delete {name}" for name in present])
        except PlacewireError as error:
            left.append(str(error))
    left += [f"namespace {name}" for name in present if namespace_exists(name)]
    if left:
        raise RestoreFailed(
            f"parts of the lab {record.name!r} are left: {'; '.join(left)}",
            where="lab",
            remedy=f"end what holds them, then run: controller lab down {record.name}",
        )
    shutil.rmtree(records.directory_of(record.name))
    progress(f"lab {record.name}: removed {len(present)} namespaces and all that ran in them")


def put_back(sysctl: SysctlRecord) -> None:
    path = Path(sysctl.path)
    if path.read_text().strip() == sysctl.ours:
        path.write_text(sysctl.before)
