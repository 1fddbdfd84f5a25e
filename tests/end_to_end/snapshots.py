"""Takes snapshots of the lab's servers by the oracle, and of the machine, and compares two of
them."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewire.controller.lab.record import LAB_ROOT, exclusive
from placewire.oracle.namespace import take_in

# Of the whole machine. A lab that goes up beside raises it for a moment, and one whose `lab up` was
# killed until it is taken down; tests/controller/lab holds that it is put back.
_RAISED_BY_LABS = "net.core.wmem_default "
# Each row's number tells whether it was made anew.
_TABLES = ("Bridge", "Port", "Interface", "QoS", "Queue")


def run(namespace: str, *argv: str) -> str:
    command = ["ip", "netns", "exec", namespace, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def server_snapshot(namespace: str, database: Path) -> Mapping[str, Any]:
    """The oracle's snapshot, and the row numbers in Open vSwitch's database."""
    return {
        **take_in(namespace, str(database.parent)),
        "row numbers": _row_numbers(namespace, database),
    }


def _row_numbers(namespace: str, database: Path) -> dict[str, list[str]]:
    """By table."""
    words = [word for table in _TABLES for word in ("--", "--columns=_uuid", "list", table)]
    command = ["ovs-vsctl", f"--db=unix:{database}", "--no-wait", "--format=json", *words]
    shown = [json.loads(line)["data"] for line in run(namespace, *command).splitlines()]
    return {t: sorted(map(str, rows)) for t, rows in zip(_TABLES, shown, strict=True)}


def without_row_numbers(servers: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """A network that was removed and made again is equal without them."""
    return {
        server: {what: found for what, found in snapshot.items() if what != "row numbers"}
        for server, snapshot in servers.items()
    }


def differences(before: Any, after: Any, where: str = "") -> list[str]:
    """A line for everything that only one of two snapshots has."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        lines = [f"{where}only before: {key}" for key in before if key not in after]
        lines += [f"{where}only after: {key}" for key in after if key not in before]
        for key in before:
            if key in after:
                lines += differences(before[key], after[key], f"{where}{key}: ")
        return lines
    if isinstance(before, list) and isinstance(after, list):
        lines = [f"{where}only before: {one}" for one in before if one not in after]
        lines += [f"{where}only after: {one}" for one in after if one not in before]
        if lines:
            return lines
    return [] if before == after else [f"{where}{before} -> {after}"]


def machine_snapshot(lab: str) -> Mapping[str, Any]:
    """The root namespace, and all that the lab of this name could leave on the machine, without
    processes, which TestCluster.down() looks for. Taken while no lab goes up or down."""

    def lines(*argv: str) -> list[str]:
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return sorted(text.splitlines())

    with exclusive():
        return {
            "namespaces": [line for line in lines("ip", "netns", "list") if lab in line],
            "links": lines("ip", "-o", "-br", "link"),
            "addresses": lines("ip", "-o", "-br", "address"),
            "rules": lines("ip", "rule"),
            "routes": lines("ip", "route", "show", "table", "all"),
            "sysctls": [
                line
                for line in lines(
                    "sysctl", "-a", "-r", r"^net\.(core\.[rw]mem|ipv4\.(ip_forward|conf))"
                )
                if not line.startswith(_RAISED_BY_LABS)
            ],
            "runtime files": sorted(
                str(path)
                for path in Path("/run").glob("placewire*/**/*")
                if path != LAB_ROOT and (LAB_ROOT not in path.parents or lab in str(path))
            ),
            # A controller's files; under `make test` these tests have a folder of their own.
            "temporary files": sorted(
                map(str, Path(tempfile.gettempdir()).glob("placewire-????????"))
            ),
        }
