"""Removes what a lab made, by its record: after `lab up`, also one that was killed anywhere."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from placewire.controller.errors import PlacewireError, RestoreFailed
from placewire.controller.lab import record as records
from placewire.controller.lab.processes import end, processes_of, strangers_in
from placewire.controller.lab.record import LabRecord, SysctlRecord
from placewire.controller.lab.system import namespace_exists, require_root_and_programs, run_batch


def lab_down(name: str, progress: Callable[[str], None] = lambda text: None) -> None:
    """Raises PlacewireError if there is no such lab, RestoreFailed saying what is left."""
    require_root_and_programs()
    with records.exclusive():
        if name not in records.recorded_names():
            raise PlacewireError(
                f"there is no lab {name!r}", where="lab", remedy="`controller lab list` names them"
            )
        record = records.load(name)
        if record is not None:
            remove(record, progress)
        else:  # killed before anything was made, or when only its files were left
            shutil.rmtree(records.directory_of(name))


def remove(record: LabRecord, progress: Callable[[str], None]) -> None:
    """Under the lock. Idempotent: what is gone already is passed over."""
    for sysctl in record.sysctls:
        put_back(sysctl)
    left = [f"process {pid}" for pid in end(processes_of(record))]
    _reap(record)
    if strangers := strangers_in(record):
        progress(
            f"lab {record.name}: left alone, but its network goes: "
            f"process {', '.join(map(str, strangers))}"
        )
    present = [name for name in record.namespaces if namespace_exists(name)]
    if present:
        try:
            run_batch("ip", None, [f"netns delete {name}" for name in present])
        except PlacewireError as error:
            left.append(str(error))
    left += [f"namespace {name}" for name in present if namespace_exists(name)]
    if left:
        raise RestoreFailed(
            f"the lab {record.name!r} is not all gone: {'; '.join(left)}",
            where="lab",
            remedy=f"end what holds it, then again: controller lab down {record.name}",
        )
    shutil.rmtree(records.directory_of(record.name))
    progress(f"lab {record.name}: removed {len(present)} namespaces and all that ran in them")


def put_back(sysctl: SysctlRecord) -> None:
    path = Path(sysctl.path)
    if path.read_text().strip() == sysctl.ours:
        path.write_text(sysctl.before)


def _reap(record: LabRecord) -> None:
    """Agents are children of the process that made the lab, which may be this one."""
    for process in record.processes:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
