"""Makes several servers in one machine, each with its own Open vSwitch on the kernel datapath.

servers   one namespace each, with nicN (10.7.N.K/24) for each rail N
rails     one namespace, in which a kernel bridge joins each rail's NICs. The bridge has an address
          (10.7.N.200) that stands for a stranger, which is neither a server nor of the job
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from placewire.agent.contract.capabilities import Capabilities
from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.measurement import Transfer, TransferResult
from placewire.agent.drivers.server import Server
from tests.agent.server_under_test import ServerUnderTest, start_switch, take_down, wait_for
from tests.agent.transfers import send_at

Servers = Mapping[str, ServerUnderTest]

# Transfers start so much later, when all clients have been forked.
_START_SECONDS = 4.0


def stranger(rail: int) -> str:
    return f"10.7.{rail}.200"


@contextmanager
def servers_on_rails(names: Sequence[str], rails: int = 2) -> Iterator[Servers]:
    tag = uuid.uuid4().hex[:6]
    between = f"pwt-{tag}-rails"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placewire-test-")))
        subprocess.run(["ip", "netns", "add", between], check=True)
        stack.callback(subprocess.run, ["ip", "netns", "del", between], capture_output=True)
        built = {}
        for number, name in enumerate(names, 1):
            (folder / name).mkdir()
            server = ServerUnderTest(folder / name, f"pwt-{tag}-{name}", between, name)
            stack.callback(take_down, server)
            subprocess.run(["ip", "netns", "add", server.namespace], check=True)
            if number == 1:
                for rail in range(rails):
                    server.sh(
                        f"ip link add rail{rail} type bridge; ip link set rail{rail} up; "
                        f"ip address add {stranger(rail)}/24 dev rail{rail}",
                        peer=True,
                    )
            _join(server, number, rails)
            start_switch(server)
            built[name] = server
        yield built


def _join(server: ServerUnderTest, number: int, rails: int) -> None:
    commands = [
        "ip link set lo up; sysctl -qw net.ipv6.conf.all.disable_ipv6=1 "
        "net.ipv6.conf.default.disable_ipv6=1",
        # No NIC is taken over while nobody knows by which one the controller is reached.
        "ip link add mgmt type dummy; ip link set mgmt up; ip address add 10.9.0.1/24 dev mgmt",
    ]
    for rail in range(rails):
        port = f"{server.name}-{rail}"
        commands.append(
            f"ip link add nic{rail} type veth peer name {port} netns {server.peer}; "
            f"ip link set nic{rail} up; "
            f"ip address add 10.7.{rail}.{number}/24 broadcast 10.7.{rail}.255 dev nic{rail}; "
            f"ip -n {server.peer} link set {port} up master rail{rail}"
        )
    server.sh(" && ".join(commands))


def capabilities(config: AgentConfig) -> Capabilities:
    """Must be called inside a server."""
    return Server(config).capabilities()


def measure(
    servers: Servers, transfers: Sequence[Transfer], seconds: float
) -> tuple[TransferResult, ...]:
    """Runs all transfers at once, each with the agent's own client on its server."""
    leaving: dict[str, list[Transfer]] = defaultdict(list)
    ports: dict[str, list[int]] = defaultdict(list)
    for item in transfers:
        leaving[item.source].append(item)
        ports[item.destination].append(item.tcp_port)
        servers[item.destination].popen(
            "iperf3", "-s", "-1", "-J", "-B", item.destination_address, "-p", str(item.tcp_port),
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    for name, wanted in ports.items():
        wait_for(lambda n=name, w=wanted: _listening(servers[n], w), f"iperf3 on {name}", 30)
    start_unix = time.time() + _START_SECONDS
    with ThreadPoolExecutor(len(leaving)) as pool:
        answers = pool.map(
            lambda item: servers[item[0]].inside(send_at, tuple(item[1]), seconds, start_unix),
            leaving.items(),
        )
        return tuple(result for results in answers for result in results)


def _listening(server: ServerUnderTest, ports: Sequence[int]) -> bool:
    shown = server.sh("ss -ltn")
    return all(f":{port} " in shown for port in ports)
