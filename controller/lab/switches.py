"""Starts a private Open vSwitch per server of a lab, with a send buffer that holds its queues."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from placewire.controller.errors import PlacewireError
from placewire.controller.lab import record as records
from placewire.controller.lab.down import put_back
from placewire.controller.lab.processes import describe
from placewire.controller.lab.record import ProcessRecord, Recorder, SysctlRecord
from placewire.controller.lab.shape import LabServer
from placewire.controller.lab.system import inside, marked_environment, run, run_batch

_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
_SEND_BUFFER = "/proc/sys/net/core/wmem_default"
# All queues of a server's ports share one AF_PACKET send buffer. The slowest queue would fill the
# machine's default of 208 kB; the others then drop packets while tc shows no drop at all.
SEND_BUFFER_BYTES = 8 * 2**20
_SETTLE_BRIDGE = "pw-settle"
_SEND_SECONDS = 30.0


def run_directory(lab: str, server: str) -> Path:
    return records.directory_of(lab) / server / "ovs"


def database_remote(lab: str, server: str) -> str:
    return f"unix:{run_directory(lab, server)}/db.sock"


def start_switches(recorder: Recorder, servers: Sequence[LabServer]) -> None:
    lab = recorder.record.name
    with ThreadPoolExecutor(max_workers=8) as pool:
        for started in pool.map(lambda server: _start(lab, server), servers):
            for process in started:
                recorder.add_process(process)
        with _raised_send_buffer(recorder):
            list(pool.map(lambda server: _settle(lab, server), servers))


def _start(lab: str, server: LabServer) -> tuple[ProcessRecord, ProcessRecord]:
    folder = run_directory(lab, server.name)
    folder.mkdir(parents=True)
    run(["ovsdb-tool", "create", f"{folder}/conf.db", _SCHEMA])
    database = _daemon(
        lab, server, "ovsdb-server", [f"--remote=punix:{folder}/db.sock"], f"{folder}/conf.db"
    )
    version = run(["ovs-vswitchd", "--version"]).splitlines()[0].split()[-1]
    vsctl(
        lab, server.name, "--no-wait", "init", "--", "set", "Open_vSwitch", ".",
        f"ovs-version={version}", f"external-ids:system-id={server.name}",
    )  # fmt: skip
    switch = _daemon(lab, server, "ovs-vswitchd", [], database_remote(lab, server.name))
    return database, switch


def _daemon(
    lab: str, server: LabServer, program: str, options: Sequence[str], argument: str
) -> ProcessRecord:
    """Starts a detached daemon, which serves when this returns. Its log lies beside its socket."""
    folder = run_directory(lab, server.name)
    argv = [
        program, *options, f"--pidfile={folder}/{program}.pid",
        f"--log-file={folder}/{program}.log", "--verbose=console:off", "--no-chdir", "--detach",
        argument,
    ]  # fmt: skip
    run(inside(server.namespace, argv), environment=_environment(lab, server.name))
    pid = int((folder / f"{program}.pid").read_text())
    return describe(pid, argv)


def _environment(lab: str, server: str) -> dict[str, str]:
    folder = str(run_directory(lab, server))
    return marked_environment(
        lab, OVS_RUNDIR=folder, OVS_LOGDIR=folder, OVS_DBDIR=folder, OVS_SYSCONFDIR=folder
    )


def vsctl(lab: str, server: str, *arguments: str) -> str:
    """Runs ovs-vsctl on that server's own database."""
    argv = ["ovs-vsctl", "--timeout=10", f"--db={database_remote(lab, server)}", *arguments]
    return run(argv, environment=_environment(lab, server))


@contextmanager
def _raised_send_buffer(recorder: Recorder) -> Iterator[None]:
    """Raises net.core.wmem_default only while the daemons make their sockets: the value is the
    whole machine's, and a socket takes it when it is made."""
    path = Path(_SEND_BUFFER)
    before = path.read_text().strip()
    if int(before) >= SEND_BUFFER_BYTES:
        yield
        return
    sysctl = SysctlRecord(path=str(path), before=before, ours=str(SEND_BUFFER_BYTES))
    recorder.update(sysctls=(*recorder.record.sysctls, sysctl))
    try:
        path.write_text(sysctl.ours)
        yield
    finally:
        put_back(sysctl)


def _settle(lab: str, server: LabServer) -> None:
    """Sends a frame through a throw-away bridge: at its first frame ovs-vswitchd opens the one
    AF_PACKET socket that all its ports send through."""
    folder, bridge = run_directory(lab, server.name), _SETTLE_BRIDGE
    port, peer = f"{bridge}0", f"{bridge}1"
    pair = f"link add {port} type veth peer name {peer}"
    run_batch("ip", server.namespace, [pair, *(f"link set {end} up" for end in (port, peer))])
    vsctl(
        lab, server.name, "add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev",
        "--", "add-port", bridge, port, "--", "set", "Interface", port, "ofport_request=1",
    )  # fmt: skip
    frame = "ff" * 6 + "02" + "00" * 5 + "88b5" + "00" * 46  # a local experimental EtherType
    run(
        ["ovs-ofctl", "packet-out", f"unix:{folder}/{bridge}.mgmt",
         f"in_port=local packet={frame} actions=output:1"],
        environment=_environment(lab, server.name),
    )  # fmt: skip
    _require_send_buffer(server)
    vsctl(lab, server.name, "del-br", bridge)
    run_batch("ip", server.namespace, [f"link delete {port}"])


def send_buffer_bytes(namespace: str) -> int:
    """Returns the largest buffer of packet sockets that only send (protocol 0); 0 without any."""
    listing = run(inside(namespace, ["ss", "-0", "--all", "--memory", "--no-header", "--oneline"]))
    sizes = [
        int(line.partition(",tb")[2].partition(",")[0])
        for line in listing.splitlines()
        if " [0]:* " in line and ",tb" in line
    ]
    return max(sizes, default=0)


def _require_send_buffer(server: LabServer) -> None:
    deadline = time.monotonic() + _SEND_SECONDS
    while (found := send_buffer_bytes(server.namespace)) == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    if found < SEND_BUFFER_BYTES:
        raise PlacewireError(
            f"ovs-vswitchd sends through a buffer of {found} bytes; it needs {SEND_BUFFER_BYTES}, "
            "so that its queues do not disturb each other",
            where=server.name,
            remedy="another program lowered net.core.wmem_default meanwhile; try again",
        )
