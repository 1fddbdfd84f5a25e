"""Item 10: collectives of a script, cut between NICs, against what a script can have without that.

Two servers are namespaces with two or three NICs of 200 Mbit/s together. For MPTCP a small library
is compiled, which makes gloo's sockets such of MPTCP; the package mptcpize has one, too, with which
gloo aborts.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.job.namespaces import Namespaces, run
from benchmarks.report import ROOT
from benchmarks.table import Table, milliseconds
from placewire.controller.compile.rail_pattern import rail_pattern
from placewire.controller.compile.scripts import cut_from_bytes
from placewire.job.contract.specification import RailInterface, ScriptSpec
from placewire.job.script.environment import script_environment
from placewire.optimizer.cluster_plan.payload import payload_fraction

NICS_BITS_PER_SECOND = {
    "100 + 100": (100e6, 100e6),
    "140 + 60": (140e6, 60e6),
    "67 + 67 + 67": (66.7e6, 66.7e6, 66.7e6),
    "120 + 60 + 20": (120e6, 60e6, 20e6),
}
# Bytes of the tensor, and how often it is reduced.
SIZES = {2**16: 32, 2**18: 32, 10**6: 16, 8 * 10**6: 8, 64 * 10**6: 4}
SERVERS, TCP_PORT, LIMIT_SECONDS = ("s1", "s2"), 29600, 400
DDP = ("examples/ddp.py", "--steps", "12", "--width", "1024", "--bucket-mb", "4")

# From the NICs' rates, fastest first, to the environment of a rank.
Way = Callable[[ScriptSpec], Mapping[str, str]]


def one_nic(spec: ScriptSpec) -> Mapping[str, str]:
    first = {"rail_interfaces": spec.rail_interfaces[:1], "rail_pattern": (0,), "rail_parts": ()}
    return _environment(spec.model_copy(update=first))


def in_turn(spec: ScriptSpec) -> Mapping[str, str]:
    return _environment(spec.model_copy(update={"rail_parts": ()}))


def cut(spec: ScriptSpec) -> Mapping[str, str]:
    return _environment(spec)


def multipath(spec: ScriptSpec) -> Mapping[str, str]:
    return {**one_nic(spec), "LD_PRELOAD": str(_multipath_sockets())}


WAYS: dict[str, Way] = {
    "one NIC": one_nic, "in turn": in_turn, "cut": cut, "MPTCP": multipath,
}  # fmt: skip


def tables(pictures: Path | None) -> Iterable[Table]:
    reduced, steps = [], []
    for name, rates in NICS_BITS_PER_SECOND.items():
        of_rail = {
            rail: dict.fromkeys(SERVERS, rate) for rail, rate in zip("abc", rates, strict=False)
        }
        with Namespaces(of_rail, "co", offloads=True) as network:
            _allow_multipath(network)
            sizes = [f"{size}:{repeats}" for size, repeats in SIZES.items()]
            times = {
                way: json.loads(_ran(network, way, "benchmarks/job/all_reduce_times.py", *sizes))
                for way in WAYS
            }
            ddp = [_step(_ran(network, way, *DDP)) for way in WAYS]
        together = sum(rates) * payload_fraction() / 8
        for size in SIZES:
            # In turn, each is on another NIC; of the others a slow one is this machine's.
            seconds = {
                way: (statistics.mean if way == "in turn" else statistics.median)(of[str(size)])
                for way, of in times.items()
            }
            reduced.append((
                name, _shown(size), *map(milliseconds, seconds.values()),
                *(f"{size / seconds[way] / together:.0%}" for way in ("one NIC", "cut", "MPTCP")),
            ))  # fmt: skip
        steps.append((name, *map(milliseconds, ddp)))
    yield Table(
        title="10. An all-reduce on two servers, in ms",
        columns=(
            "NICs, Mbit/s", "tensor", *WAYS, *(f"of all NICs: {w}" for w in ("one", "cut", "MPTCP"))
        ),
        rows=reduced,
        notes=(
            "gloo, one process a server; NICs are veth limited by HTB, with queues of 128 KiB. One "
            "NIC: plain gloo on the fastest. In turn: as applied with `cut_collectives: false`; a "
            "mean. Cut: as applied. "
            "MPTCP: plain gloo, whose connections have a subflow on each NIC by a preloaded "
            "library; under mptcpize gloo aborts, because the kernel (6.18) refuses SO_REUSEADDR "
            "on what it accepts. Of all NICs: the tensor's bytes in this time, against the payload "
            "of all NICs; with two servers each sends as many. Medians.",
        ),
    )  # fmt: skip
    yield Table(
        title="10. A step of DistributedDataParallel on two servers, in ms",
        columns=("NICs, Mbit/s", *WAYS),
        rows=steps,
        notes=(f"{' '.join(DDP)}, whose gradients are 16.8 MB; as above. Medians of later steps.",),
    )


@functools.cache
def _multipath_sockets() -> Path:
    """Compiles the library."""
    folder = Path(tempfile.mkdtemp(prefix="placewire-multipath-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library, source = folder / "sockets.so", Path(__file__).with_name("multipath_sockets.c")
    run("cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl")
    return library


def _environment(spec: ScriptSpec) -> Mapping[str, str]:
    return script_environment(spec, 0, {"PATH": os.environ["PATH"]})


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:g} MB" if size_bytes >= 10**6 else f"{size_bytes // 1024} KiB"


def _ran(network: Namespaces, way: str, *words: str) -> str:
    """Runs a script on both servers; returns what rank 0 printed."""
    rates = [next(iter(rail.values())) or 0.0 for rail in network.rates.values()]
    shares = tuple(rate / sum(rates) for rate in rates)
    started = []
    for rank, server in enumerate(SERVERS):
        rails = tuple(
            RailInterface(
                rail=rail, interface=network.nic(rail), address=network.address(server, rail)
            )
            for rail in network.rates
        )
        spec = ScriptSpec(
            rank=rank, world_size=len(SERVERS), device=f"{server}/0", script=words[0],
            master_address=network.address(SERVERS[0], "a"), master_tcp_port=TCP_PORT,
            rail_interfaces=rails, rail_pattern=rail_pattern(shares), rail_parts=shares,
            cut_from_bytes=cut_from_bytes(rates),
        )  # fmt: skip
        # The environment is that of the script alone: `ip` needs no MPTCP.
        given = [f"{name}={value}" for name, value in WAYS[way](spec).items()]
        started.append(subprocess.Popen(
            [*network.prefix(server), "env", *given, sys.executable, *words],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
    try:
        said = [one.communicate(timeout=LIMIT_SECONDS) for one in started]
    finally:
        for one in started:
            one.kill()
    if any(one.returncode for one in started):
        raise RuntimeError(f"{way}: {' '.join(words)} failed\n{said[0][1][-2000:]}")
    return said[0][0]


def _step(said: str) -> float:
    steps = [float(found) for found in re.findall(r"step \d+: ([\d.]+) s", said)]
    return statistics.median(steps[len(steps) // 3 :])


def _allow_multipath(network: Namespaces) -> None:
    """Lets a connection between two addresses of the first rail have a subflow on each other rail:
    from this server's address there, by its NIC there, to the peer's address on the first."""
    first, *others = network.rates
    for server in SERVERS:
        inside, name = network.prefix(server), network.name(server)
        (peer,) = set(SERVERS) - {server}
        _multipath_on(inside, name, network.address(peer, first), [
            (network.address(server, rail), network.nic(rail), network.address(peer, rail))
            for rail in others
        ])  # fmt: skip


def _multipath_on(
    inside: Sequence[str], namespace: str, to: str, rails: Sequence[tuple[str, str, str]]
) -> None:
    """rails: own address, NIC, and the peer's address on it."""
    count = str(len(rails))
    run(*inside, "sysctl", "-qw", "net.mptcp.enabled=1", "net.ipv4.conf.all.rp_filter=0")
    run("ip", "-n", namespace, "mptcp", "limits", "set", "subflow", count)
    for table, (own, nic, peer) in enumerate(rails, start=101):
        run(*inside, "sysctl", "-qw", f"net.ipv4.conf.{nic}.rp_filter=0")
        run("ip", "-n", namespace, "route", "add", to, "via", peer, "dev", nic, "table", str(table))
        run("ip", "-n", namespace, "rule", "add", "from", own, "lookup", str(table))
        run("ip", "-n", namespace, "mptcp", "endpoint", "add", own, "dev", nic, "subflow")
