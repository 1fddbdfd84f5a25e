"""Takes snapshots of a server's network, as its own tools print it, and compares two of them.

Counters, timers and other values that change by themselves are left out; everything else counts.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewire.controller.lab.record import LAB_ROOT, exclusive

_TABLES = ("Bridge", "Port", "Interface", "QoS", "Queue")
# Left out are columns that change by themselves, like ofport numbers and statistics.
_COLUMNS = {
    "Bridge": "name,datapath_type,ports,external_ids,other_config,fail_mode",
    "Port": "name,interfaces,qos,external_ids,other_config,tag",
    "Interface": "name,type,external_ids,other_config,mtu_request",
    "QoS": "_uuid,type,queues,external_ids,other_config",
    "Queue": "_uuid,external_ids,other_config",
}
# Of the whole machine. A lab that goes up beside raises it for a moment, and one whose `lab up` was
# killed until it is taken down; tests/controller/lab holds that it is put back.
_RAISED_BY_LABS = "net.core.wmem_default "
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def run(namespace: str, *argv: str) -> str:
    command = ["ip", "netns", "exec", namespace, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _json(namespace: str, *argv: str) -> Any:
    text = run(namespace, *argv)
    return json.loads(text) if text.strip() else []


def _links(namespace: str) -> list[Any]:
    keep = ("ifname", "address", "mtu", "flags", "qdisc", "master", "link")
    return sorted(
        ({key: link.get(key) for key in keep} for link in _json(namespace, "ip", "-j", "link")),
        key=lambda link: str(link["ifname"]),
    )


def _traffic_control(namespace: str) -> list[str]:
    lines = []
    for link in _links(namespace):
        for what in ("qdisc", "class", "filter"):
            try:
                text = run(namespace, "tc", what, "show", "dev", link["ifname"])
            except subprocess.CalledProcessError as error:
                # The link vanished meanwhile, in a restore: a later snapshot will differ.
                lines.append(f"{link['ifname']} {what} {error.stderr}")
                continue
            lines += [f"{link['ifname']} {what} {line.strip()}" for line in text.splitlines()]
    # Handles are left out: a qdisc that the kernel makes by itself gets the next free one.
    return sorted(re.sub(r"qdisc (\w+) \w+: ", r"qdisc \1 ", line) for line in lines)


def _sysctls(namespace: str) -> list[str]:
    lines = run(namespace, "sysctl", "-a", "-r", r"^net\.(ipv4|core)").splitlines()
    return sorted(line for line in lines if not line.startswith(_RAISED_BY_LABS))


def _open_vswitch(namespace: str, database: Path) -> Mapping[str, Any]:
    return {
        table: sorted(
            run(
                namespace, "ovs-vsctl", f"--db=unix:{database}", "--no-wait", "--format=list",
                f"--columns={_COLUMNS[table]}", "list", table,
            ).split("\n\n")
        )
        for table in _TABLES
    }  # fmt: skip


def server_snapshot(namespace: str, database: Path) -> Mapping[str, Any]:
    addresses = [
        (link["ifname"], address["family"], address["local"], address["prefixlen"])
        for link in _json(namespace, "ip", "-j", "address")
        for address in link.get("addr_info", [])
    ]
    return {
        "links": _links(namespace),
        "addresses": sorted(addresses),
        "rules": sorted(run(namespace, "ip", "rule").splitlines()),
        "routes": sorted(run(namespace, "ip", "route", "show", "table", "all").splitlines()),
        "traffic control": _traffic_control(namespace),
        "sysctls": _sysctls(namespace),
        "open vswitch": _open_vswitch(namespace, database),
    }


def without_row_numbers(servers: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Replaces the row numbers of Open vSwitch's database by the rows' contents, so that a network
    that was removed and made again is equal."""
    return {
        server: {**snapshot, "open vswitch": _rows_by_content(snapshot["open vswitch"])}
        for server, snapshot in servers.items()
    }


def _rows_by_content(tables: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
    said: dict[str, str] = {}

    def named(text: str) -> str:
        return _UUID.sub(lambda number: said.get(number[0], "row"), text)

    for table in ("Queue", "QoS"):  # a QoS row names its queues, and other rows name QoS rows
        for row in filter(None, tables[table]):
            first, rest = row.split("\n", 1)
            found = _UUID.search(first)
            assert found is not None, row
            said[found[0]] = named(rest)
    return {table: sorted(map(named, rows)) for table, rows in tables.items()}


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
