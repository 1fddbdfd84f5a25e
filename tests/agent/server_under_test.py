"""A private "server" for tests: network namespaces, veth NICs, an Open vSwitch of its own.

server  nic0, nic1 (10.7.0.1/24, 10.7.1.1/24), ovsdb-server and ovs-vswitchd, mgmt 10.9.0.1/24
peer    the other ends, with .2 and .3 on each rail; mgmt 10.9.0.254/24
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from placewire.agent.contract.config import AgentConfig
from tests.agent.datapath import DATAPATH, PATIENCE

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"
_CLONE_NEWNET = 0x40000000
_VSCTL = "ovs-vsctl --timeout=30 --db=unix:$OVS_RUNDIR/db.sock"
_SHOWN = {
    "links": "ip -j -d link show; ",
    "addresses": "ip -4 address show; ",
    "routes": "ip -4 route show table all; ",
    "IPv6": "for n in nic0 nic1; do ip -6 address show dev $n; ip -6 route show table all dev $n; "
    "done 2>/dev/null; true; ",
    "rules": "ip rule show; ",
    "qdiscs": "tc qdisc show; ",
    "filters": "for n in nic0 nic1; do tc class show dev $n; tc filter show dev $n; done; ",
    "switch": f"{_VSCTL} show; ",
    "rows": f"{_VSCTL} --columns=_uuid,name list bridge -- list port; ",
    "qos": f"{_VSCTL} list qos -- list queue; ",
    "sysctls": "cd /proc/sys/net/ipv4; "
    "grep -H . conf/all/* conf/default/* conf/nic?/* conf/mgmt/* fib_* 2>/dev/null; true; ",
}
_QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
CONTROLLER_ADDRESS = "10.9.0.254"


@dataclass
class ServerUnderTest:
    """switch_options: user, group and umask of Open vSwitch's daemons, for Popen."""

    directory: Path
    namespace: str
    peer: str
    name: str = "s1"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    switch_options: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> AgentConfig:
        return AgentConfig(
            server=self.name,
            controller_url=f"https://{CONTROLLER_ADDRESS}:7443",
            certificate_file=str(self.directory / "agent.crt"),
            key_file=str(self.directory / "agent.key"),
            authority_file=str(self.directory / "ca.crt"),
            state_dir=str(self.directory / "state"),
            ovsdb_remote=f"unix:{self.directory}/db.sock",
            openvswitch_run_dir=str(self.directory),
            datapath=DATAPATH,
            protected=("mgmt",),
        )

    @property
    def environment(self) -> dict[str, str]:
        here = str(self.directory)
        return {**os.environ, "OVS_RUNDIR": here, "OVS_DBDIR": here, "OVS_LOGDIR": here}

    def sh(self, command: str, *, peer: bool = False, check: bool = True) -> str:
        done = subprocess.run(
            ["ip", "netns", "exec", self.peer if peer else self.namespace, "sh", "-c", command],
            capture_output=True, text=True, timeout=60 * PATIENCE, env=self.environment,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.stderr or done.stdout}")
        return done.stdout

    def vsctl(self, command: str) -> str:
        return self.sh(f"ovs-vsctl --timeout=30 --db=unix:{self.directory}/db.sock {command}")

    def popen(self, *command: str, peer: bool = False, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a process that ends with the server."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.peer if peer else self.namespace, *command],
            env=self.environment, **options,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def inside(self, function: Callable[..., Any], *arguments: Any, peer: bool = False) -> Any:
        """Calls a function in a child process in the server's namespace; raises what it raised."""
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        namespace = self.peer if peer else self.namespace
        child = context.Process(target=_child, args=(theirs, namespace, function, arguments))
        child.start()
        theirs.close()
        try:
            if not ours.poll(60 * PATIENCE):
                raise AssertionError(f"{function} did not end in {60 * PATIENCE:g} s")
            try:
                ok, value = ours.recv()
            except EOFError as error:
                child.join(60 * PATIENCE)
                raise AssertionError(f"{function} died: exit {child.exitcode}") from error
        finally:
            if child.is_alive():
                child.join(2)
            if child.is_alive():
                child.kill()
            child.join()
        if not ok:
            raise AssertionError(value)
        return value

    def plug_in(self, nic: str) -> None:
        """Makes a NIC with a cable to the peer's NIC of the same name, both up."""
        self.sh(f"ip link add {nic} type veth peer name {nic} netns {self.peer}")
        # The userspace datapath takes frames as they are; the kernel datapath has offloads.
        off = f"ethtool -K {nic} tx off tso off gso off gro off >/dev/null; "
        up = (off if DATAPATH == "netdev" else "") + f"ip link set {nic} up"
        self.sh(up)
        self.sh(up, peer=True)

    def give_addresses(self, rail: int) -> None:
        self.sh(f"ip address add 10.7.{rail}.1/24 broadcast 10.7.{rail}.255 dev nic{rail}")
        for host in (2, 3):
            self.sh(f"ip address add 10.7.{rail}.{host}/24 dev nic{rail}", peer=True)

    def give_ipv6(self) -> None:
        """Gives nic0 and its peer an address each, and nic0 a route by the peer's."""
        with self.addresses_at_once():
            for rail_end, peer in (("fd07::1", False), ("fd07::2", True)):
                self.sh(f"sysctl -qw net.ipv6.conf.nic0.disable_ipv6=0; "
                        f"ip address add {rail_end}/64 dev nic0 nodad", peer=peer)  # fmt: skip
            # Without `nodad` from now on, so that it is seen where an undo leaves that.
            self.sh("ip address replace fd07::1/64 dev nic0; "
                    "ip route add 2001:db8::/32 via fd07::2 dev nic0 src fd07::1")  # fmt: skip

    @contextmanager
    def addresses_at_once(self) -> Iterator[None]:
        """Within, both ends of each cable have their IPv6 addresses at once: the kernel does not
        first look for somebody who has the same one, which takes up to two seconds."""
        names = [
            f"net.ipv6.conf.{nic}.{name}"
            for nic in ("nic0", "nic1", "mgmt")
            for name in ("dad_transmits", "router_solicitation_delay")
        ]
        ends = (False, True)
        former = [self.sh(f"sysctl {' '.join(names)}", peer=peer) for peer in ends]
        for peer in ends:
            self.sh(f"sysctl -qw {' '.join(f'{name}=0' for name in names)}", peer=peer)
        yield
        for peer, was in zip(ends, former, strict=True):
            wait_for(partial(self._has_its_addresses, peer), "its addresses")
            self.sh(f"sysctl -qw {was.replace(' = ', '=')}".replace("\n", " "), peer=peer)

    def _has_its_addresses(self, peer: bool) -> bool:
        return "tentative" not in self.sh("ip address show", peer=peer)

    def snapshot(self) -> dict[str, str]:
        """All that a restore must bring back, as the system's own tools show it."""
        mark = "=====snapshot====="
        script = f"echo; echo {mark}; ".join(_SHOWN.values())
        parts = self.sh(script).split(f"\n{mark}\n")
        shown = dict(zip(_SHOWN, parts, strict=True))
        keys = ("ifname", "ifindex", "flags", "mtu", "qdisc", "operstate", "address", "txqlen")
        links = json.loads(shown["links"])
        return {**shown, "links": "\n".join(str([link.get(key) for key in keys]) for link in links)}


def enter_namespace(name: str) -> None:
    """Moves this thread into the network namespace."""
    with Path(f"/run/netns/{name}").open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {name}")


def _child(pipe: Any, namespace: str, function: Callable[..., Any], arguments: Any) -> None:
    try:
        enter_namespace(namespace)
        pipe.send((True, function(*arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        os._exit(0)


@contextmanager
def server_under_test(**switch_options: Any) -> Iterator[ServerUnderTest]:
    tag = uuid.uuid4().hex[:8]
    with tempfile.TemporaryDirectory(prefix="placewire-test-") as directory:
        server = ServerUnderTest(Path(directory), f"pwt-{tag}-s", f"pwt-{tag}-p")
        server.switch_options.update(switch_options)
        try:
            _build(server)
            yield server
        finally:
            take_down(server)


def _build(server: ServerUnderTest) -> None:
    for name in (server.namespace, server.peer):
        subprocess.run(["ip", "netns", "add", name], check=True)
    server.sh("ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1 "
              "net.ipv6.conf.default.disable_ipv6=1")  # fmt: skip
    join_peer(server)
    start_switch(server)


def join_peer(server: ServerUnderTest) -> None:
    """Connects NICs and management of both namespaces, once they exist."""
    server.sh("ip link set lo up", peer=True)
    for nic in ("nic0", "nic1", "mgmt"):
        server.plug_in(nic)
    for rail in (0, 1):
        server.give_addresses(rail)
    server.sh("ip address add 10.9.0.1/24 dev mgmt")
    server.sh(f"ip address add {CONTROLLER_ADDRESS}/24 dev mgmt", peer=True)


def start_switch(server: ServerUnderTest) -> None:
    here = server.directory
    subprocess.run(["ovsdb-tool", "create", f"{here}/conf.db", SCHEMA], check=True)
    start_database(server)
    server.vsctl("--no-wait init")
    start_vswitchd(server)
    server.vsctl("show")


def start_vswitchd(server: ServerUnderTest) -> None:
    here = server.directory
    (here / "vswitchd.pid").unlink(missing_ok=True)
    server.popen(
        "ovs-vswitchd", f"unix:{here}/db.sock", "--no-chdir", f"--pidfile={here}/vswitchd.pid",
        f"--log-file={here}/vswitchd.log", "-vconsole:off",
        **_QUIET, **server.switch_options,
    )  # fmt: skip
    wait_for((here / "vswitchd.pid").exists, "ovs-vswitchd")


def start_database(server: ServerUnderTest) -> None:
    here = server.directory
    server.popen(
        "ovsdb-server", f"{here}/conf.db", f"--remote=punix:{here}/db.sock", "--no-chdir",
        f"--pidfile={here}/ovsdb-server.pid", f"--log-file={here}/ovsdb.log", "-vconsole:off",
        **_QUIET, **server.switch_options,
    )  # fmt: skip
    wait_for((here / "db.sock").exists, "ovsdb-server")


def take_down(server: ServerUnderTest) -> None:
    for process in reversed(server.processes):
        if process.poll() is None:
            process.terminate()
    for process in server.processes:
        try:
            process.wait(5 * PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for name in (server.namespace, server.peer):
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true value that the function returns. seconds: only bounds a hang, on a machine on
    which any process may be held up."""
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.02)
    return value
