"""A lab of four servers that operations and faults change, and the oracle that judges it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.soak.usage import Usage, descriptors, resident_mebibytes, threads
from placewire.controller.lab import Lab, find_lab
from placewire.controller.lab.switches import database_remote, run_directory

NAME = f"soak{os.getpid() % 100_000}"
SERVERS = ("s1", "s2", "s3", "s4")
RAILS = "ab"
COMMAND_SECONDS = 240.0
# A lease, and the longest pause of an agent that tries again.
SETTLE_SECONDS = 90.0


@dataclass(frozen=True)
class Done:
    """code: None where the command was killed."""

    code: int | None
    output: str

    @property
    def told(self) -> str:
        return f"exit {self.code}: " + " | ".join(self.output.splitlines()[-6:])


class LabUnderSoak:
    def __init__(self, lab: Lab, folder: Path, plans: Mapping[str, Path]) -> None:
        self.lab = lab
        self.plans = plans
        self._folder = folder
        self.snapshots_taken = 0
        self._own: dict[tuple[str, str], list[str]] = {}
        self._first = folder / "first.json"
        done = self.run("verify", str(self.any_plan), "--snapshot", str(self._first))
        if done.code != 0:
            raise RuntimeError(f"no first snapshot: {done.told}")

    @property
    def any_plan(self) -> Path:
        return next(iter(self.plans.values()))

    # -- commands --------------------------------------------------------------------------------

    def run(self, *arguments: str, kill_after_seconds: float | None = None) -> Done:
        """Runs a `controller` command as a user does; kills it after a while where asked to."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "placewire.controller.cli", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, "COLUMNS": "200"},
            )  # fmt: skip
            code: int | None
            try:
                code = process.wait(kill_after_seconds or COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                code = None
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code is None and kill_after_seconds is None:
            text += f"\n(killed after {COMMAND_SECONDS:.0f} s)"
        return Done(code, text)

    def status(self) -> Any:
        """The document of `controller status --json`; None where the command failed."""
        done = self.run("status", str(self.any_plan), "--json")
        begin = done.output.find("{")
        try:
            return json.loads(done.output[begin:])
        except ValueError:
            return None

    # -- servers ---------------------------------------------------------------------------------

    def sh(self, server: str, command: str) -> str:
        done = subprocess.run(
            self.lab.inside_server(server, ["sh", "-c", command]),
            capture_output=True, text=True, timeout=30, env={**os.environ, **self.lab.environment},
        )  # fmt: skip
        return done.stdout

    def agent(self, server: str) -> int | None:
        """The process id of the server's agent, or None."""
        config = str(self.lab.directory / server / "agent.json").encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if config in words and b"placewire.agent.main" in words:
                return int(entry.name)
        return None

    def kill_agent(self, server: str) -> None:
        if (pid := self.agent(server)) is not None:
            os.kill(pid, signal.SIGKILL)
            self.wait_for(lambda: self.agent(server) is None, 10)

    def start_agent(self, server: str) -> None:
        """As systemd does."""
        if self.agent(server) is not None:
            return
        folder = self.lab.directory / server
        argv = [sys.executable, "-m", "placewire.agent.main", "run", "--config",
                str(folder / "agent.json")]  # fmt: skip
        with (folder / "agent.log").open("ab") as sink:
            subprocess.Popen(
                self.lab.inside_server(server, argv), env={**os.environ, **self.lab.environment},
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip

    def vsctl(self, server: str, *words: str) -> str:
        command = ["ovs-vsctl", "--timeout=10", f"--db={database_remote(self.lab.name, server)}"]
        done = subprocess.run(
            self.lab.inside_server(server, [*command, *words]), capture_output=True, text=True
        )
        return done.stdout

    def take_nic_away(self, server: str, nic: str) -> None:
        """Into the controller's namespace, which goes with the lab. Its own addresses, where it has
        any now, are whoever configured it to give back."""
        shown = json.loads(self.sh(server, f"ip -j -4 address show dev {nic}") or "[]")
        found = [info for link in shown for info in link.get("addr_info", [])]
        self._own[server, nic] = [
            f"{one['local']}/{one['prefixlen']}"
            + (f" brd {one['broadcast']}" if "broadcast" in one else "")
            for one in found
        ]
        space = self.lab.record.controller_namespace
        self.sh(server, f"ip link set {nic} netns {space} name {self._away(server, nic)}")

    def bring_nic_back(self, server: str, nic: str) -> None:
        """As an operator does who knows nothing of its address."""
        away, space = self._away(server, nic), self.lab.namespace(server)
        words = ["ip", "link", "set", away, "netns", space, "name", nic]
        subprocess.run(self.lab.inside_controller(words), check=False)
        self.sh(server, f"ip link set {nic} up")
        for address in self._own.pop((server, nic), []):
            self.sh(server, f"ip address add {address} dev {nic}")

    def _away(self, server: str, nic: str) -> str:
        return f"{server}{nic}"

    # -- judging ---------------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """What is not as it should be once the servers have settled: all on one decision that reads
        back as decided, or all as the lab was made."""
        self.snapshots_taken = 0
        found: list[str] = ["no status"]
        until = time.monotonic() + SETTLE_SECONDS
        while found and time.monotonic() < until:
            found = self._not_settled()
            if found:
                time.sleep(1)
        return found

    def _not_settled(self) -> list[str]:
        document = self.status()
        if document is None:
            return ["`controller status --json` failed"]
        phases, digests, found = set(), set(), []
        for server in SERVERS:
            one = document["servers"].get(server)
            if not one or not one.get("lease"):
                found.append(f"{server}: no answer")
                continue
            lease = one["lease"]
            phases.add(lease["phase"])
            digests.add(lease["plan_digest"])
            found += [f"{server}: {sentence}" for sentence in lease.get("owed", ())]
            read_back = one.get("read_back") or {}
            found += [f"{server}: {change}" for change in read_back.get("deviations", ())]
            found += [f"{server}: {problem}" for problem in read_back.get("problems", ())]
        if found:
            return found
        if len(phases) > 1 or len(digests) > 1 or phases - {"idle", "committed"}:
            return [f"the servers are {sorted(phases)}, on {len(digests)} decisions"]
        return self._not_as_at_first() if phases == {"idle"} else []

    def _not_as_at_first(self) -> list[str]:
        done = self.run("verify", str(self.any_plan), "--against-snapshot", str(self._first))
        self.snapshots_taken += len(SERVERS)
        return [] if done.code == 0 else [f"not as at first: {done.output.strip()}"]

    def usage(self) -> Usage:
        agents = [pid for server in SERVERS if (pid := self.agent(server)) is not None]
        switches = [
            int(file.read_text())
            for server in SERVERS
            if (file := run_directory(self.lab.name, server) / "ovs-vswitchd.pid").exists()
        ]
        tables = ("Bridge", "Port", "Interface", "QoS", "Queue")
        state = self.lab.state_directory
        return Usage(
            agents_mebibytes=sum(map(resident_mebibytes, agents)),
            agents_descriptors=sum(map(descriptors, agents)),
            agents_threads=sum(map(threads, agents)),
            switches_mebibytes=sum(map(resident_mebibytes, switches)),
            rows_of_the_databases=sum(
                len(self.vsctl(server, "--no-headings", "--columns=_uuid", "list", table).split())
                for server in SERVERS
                for table in tables
            ),
            rules=self._lines("ip rule"),
            routes=self._lines("ip route show table all"),
            interfaces=self._lines("ip -o link"),
            journal_mebibytes=sum(f.stat().st_size for f in state.glob("journal*")) / 2**20,
            states_kibibytes=sum(
                file.stat().st_size
                for server in SERVERS
                for file in (self.lab.directory / server / "agent").glob("state*")
            ) / 1024,
        )  # fmt: skip

    def _lines(self, command: str) -> int:
        return sum(len(self.sh(server, command).splitlines()) for server in SERVERS)

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True


@contextmanager
def lab_under_soak() -> Iterator[LabUnderSoak]:
    with tempfile.TemporaryDirectory(prefix="placewire-soak-") as name:
        folder = Path(name)
        plans = {
            "guarantee": _plan(folder, "guarantee", sharing="guarantee"),
            "strict": _plan(folder, "strict", sharing="strict"),
            "unshaped": _plan(folder, "unshaped", sharing="unshaped"),
        }
        _controller("lab", "up", str(plans["strict"]))
        try:
            lab = find_lab(NAME)
            assert lab is not None
            yield LabUnderSoak(lab, folder, plans)
        finally:
            _controller("lab", "down", NAME)


def _controller(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "placewire.controller.cli", *arguments], check=True)


def _plan(folder: Path, name: str, *, sharing: str) -> Path:
    """The plan of a script, so that deciding takes no time."""
    servers = [
        {
            "name": server,
            "management": f"10.9.0.{index}",
            "devices": [{"type": "cpu", "memory": "1GiB"}],
            "nics": [
                {
                    "name": f"nic{rail}", "rail": RAILS[rail],
                    "address": f"10.7.{rail}.{index}/24", "rate": "8Mbit", "take_over": True,
                }
                for rail in range(len(RAILS))
            ],
        }
        for index, server in enumerate(SERVERS, start=1)
    ]  # fmt: skip
    script = Path(__file__).resolve().parents[2] / "examples/ddp.py"
    document = {
        "version": 1,
        "name": NAME,
        "cluster": {
            "setup_latency": "200us", "intra_server_bandwidth": "10Gbit", "servers": servers
        },
        "job": {"kind": "torchrun", "script": str(script)},
        "network": {
            "sharing": sharing, "on_exit": "keep", "verify": {"seconds": 1, "tolerance": "40%"}
        },
    }  # fmt: skip
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file
