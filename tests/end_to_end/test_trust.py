"""Killed controllers, secrets, swapped cables and lost servers, on the real lab.

tests/controller kills controllers at many more points, with servers in memory.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.enrolment import parse_token
from placewire.agent.store import read_kept
from placewire.controller.decide.measured.profiles import STALENESS_PROGRAM
from placewire.controller.lab import Lab, find_lab
from placewire.controller.launch.launcher import PROFILE_PROGRAM
from tests.controller.forked_commands import Done, commands
from tests.end_to_end.cluster import SERVERS, Finished, Process, TestCluster, once
from tests.paths import ROOT

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.slow]

KILLED_APPLIES, KILLED_DESTROYS = 6, 4
PATIENCE_SECONDS = 60.0
# Each server has one agent here, so that commands need not wait for a second one of its name.
# All agents run, and each is waited for until it has dialled in, however late it gets a processor.
AT_ONCE = {
    "placewire.controller.agents.agents._ALL_DIAL_SECONDS": 0.0,
    "placewire.controller.change.in_force._PRESENT_SECONDS": PATIENCE_SECONDS,
    "placewire.controller.story.recovery._PRESENT_SECONDS": PATIENCE_SECONDS,
}
ENROLMENT = "10.9.0.254:7441"
# These run the user's code, and so have the job's variables.
PROGRAMS_OF_THE_JOB = ("placewire.job", PROFILE_PROGRAM[-1], STALENESS_PROGRAM[-1])


def lab_of(cluster: TestCluster) -> Lab:
    lab = find_lab(cluster.name)
    assert lab is not None
    return lab


# -- a controller that is killed -------------------------------------------------------------------


@pytest.mark.thorough
def test_killed_anywhere_every_server_ends_on_one_decision(
    cluster: TestCluster, untouched: None
) -> None:
    """Controllers are killed while they change a network with queues to one without, or back, or
    destroy it. The network without queues is not measured."""
    lab, rng = lab_of(cluster), random.Random(6)
    plans = [
        cluster.script_plan("with queues", on_exit="keep"),
        cluster.script_plan("without", on_exit="keep", sharing="unshaped"),
    ]
    output = cluster.folder / "output"
    options = ("--network-only", "--yes")
    with commands(output, lab.inside_controller([]), lab.environment) as controllers:

        def run(words: Sequence[str], **order: Any) -> Done:
            return controllers.run(words, patches=AT_ONCE, **order)

        def digest() -> str | None:
            """The digest of the plan in force, from the agents' disks; None where none is."""
            leases = [read_kept(lab.directory / server / "agent").lease for server in SERVERS]
            found = {(lease.phase, lease.plan_digest) for lease in leases}
            assert len(found) == 1 and {lease.expires_unix for lease in leases} == {None}, leases
            return next(iter(found))[1]

        aims: list[str | None] = []
        steps = []
        for plan in plans:
            done = run(["apply", plan, *options])
            assert done.code == 0, done.output
            aims.append(digest())
            steps.append(done.steps or 0)
        ends = []
        kinds = ["apply"] * KILLED_APPLIES + ["destroy"] * KILLED_DESTROYS
        for point, kind in enumerate(rng.sample(kinds, len(kinds))):
            before = digest()
            which = 1 - aims.index(before) if before is not None else rng.randrange(2)
            if kind == "destroy" and before is not None:
                aim, words, most = None, ["destroy", plans[which], "--yes"], 18
            else:
                aim, words, most = aims[which], ["apply", plans[which], *options], steps[which]
            done = run(words, dies_at=rng.randrange(2, most))
            assert done.code == -signal.SIGKILL, f"{point}: {words} {done.output}"
            recovered = run(["recover", plans[which], "--yes"])
            assert recovered.code == 0, f"{point}: {words} {recovered.output}"
            after = digest()
            assert after in (before, aim), f"{point}: {words} {recovered.output}"
            told = run(["status", plans[which], "--json"])
            assert told.code == 0 and told.document["left_open"] is None, told.output
            servers = told.document["servers"].values()
            assert all(one["read_back"] is False or not one["read_back"]["deviations"]
                       for one in servers), told.output  # fmt: skip
            why = told.document["standing"]["why"]
            assert "on every server that answers: " in why and "; decision " in why, why
            ends.append("new" if after == aim else "old")
        assert len(ends) == 10 and set(ends) == {"new", "old"}, ends
        assert run(["destroy", plans[0], "--yes"]).code == 0


# -- secrets ---------------------------------------------------------------------------------------


class Watched:
    """Secrets, and the files, arguments and variables in which they were wrongly found."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.found: set[str] = set()
        self.looked_at = 0

    def add(self, name: str, value: str) -> None:
        assert len(value) >= 16, "a short one is found by chance"
        self.values[name] = value.encode()

    def add_key(self, file: Path) -> None:
        """Adds the two lines of the key file that are secret; the rest is the public key."""
        text = file.read_text()
        lines = text[text.index("BEGIN PRIVATE KEY") :].splitlines()[1:3]
        for number, line in enumerate(lines):
            self.add(f"line {number} of {file.name} of {file.parent.name}", line)

    def look(self, data: bytes, where: str, *, but: Sequence[str] = ()) -> None:
        self.looked_at += 1
        for name, value in self.values.items():
            if value in data and name not in but:
                self.found.add(f"{name} in {where}")

    def look_at_processes(self, job: Sequence[str]) -> None:
        """job: names of secrets that may be in the variables of the job's own processes."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_bytes()
                variables = (entry / "environ").read_bytes()
                if not words or words != (entry / "cmdline").read_bytes():
                    continue  # it is becoming another program, which the next look covers
            except OSError:  # the process has ended
                continue
            shown = words.replace(b"\0", b" ")[:100].decode(errors="replace")
            is_job = any(program.encode() in words for program in PROGRAMS_OF_THE_JOB)
            self.look(words, f"arguments of {shown}")
            self.look(variables, f"variables of {shown}", but=job if is_job else ())

    @contextmanager
    def watching_processes(self, job: Sequence[str]) -> Iterator[None]:
        ending = threading.Event()

        def look_again() -> None:
            while not ending.wait(0.2):
                self.look_at_processes(job)

        thread = threading.Thread(target=look_again)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()


def start_agent(lab: Lab, server: str, config: Path) -> None:
    """Starts the agent as its unit would; appends to the log of the agent before. Returns when it
    dials, because a command waits for it for a few seconds only."""
    program = [sys.executable, "-m", "placewire.agent.main", "run", "--config", str(config)]
    file = lab.directory / server / "agent.log"
    before = file.stat().st_size
    with file.open("ab") as log:
        subprocess.Popen(
            lab.inside_server(server, program), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            cwd=ROOT, env=lab.environment, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not re.search(rb"no controller answers|connected to", file.read_bytes()[before:]):
        assert time.monotonic() < deadline, file.read_text()[-2000:]
        time.sleep(0.05)


def end_agent(cluster: TestCluster, server: str) -> None:
    for pid in cluster.processes("placewire.agent.main", server):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while cluster.processes("placewire.agent.main", server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cluster.processes("placewire.agent.main", server) == []


def enrolled(cluster: TestCluster, lab: Lab, server: str, tokens: Path, watched: Watched) -> Path:
    """Enrols the server with the two commands, and checks that the token is refused when it is used
    again. Returns the configuration with the new certificate."""
    own = lab.directory / server
    config = json.loads((own / "agent.json").read_text())
    identity = str(own / "agent" / "agent.pem")
    config |= {"certificate_file": identity, "key_file": identity,
               "authority_file": str(own / "agent" / "authority.crt")}  # fmt: skip
    file = own / "enrolled.json"
    file.write_text(json.dumps(config))
    other = next(name for name in SERVERS if name != server)
    words = ["enrol", server, other, "--tokens", str(tokens), "--listen", ENROLMENT]
    program = lab.inside_controller([sys.executable, "-m", "placewire.controller.cli", *words])
    ask = [sys.executable, "-m", "placewire.agent.main", "enrol", "--config", str(file), ENROLMENT]
    said = []
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env=lab.environment | {"PYTHONUNBUFFERED": "1"},
    ) as waiting:  # fmt: skip
        assert waiting.stdout is not None
        said += [waiting.stdout.readline() for _ in range(3)]
        for name in (server, other):
            token = parse_token((tokens / f"{name}.token").read_text())
            watched.add(f"token of {name}", token.secret)
        for _ in range(2):
            done = subprocess.run(
                lab.inside_server(server, ask), input=(tokens / f"{server}.token").read_bytes(),
                capture_output=True, cwd=ROOT, env=lab.environment,
            )  # fmt: skip
            watched.look(done.stdout + done.stderr, "what `agent enrol` said")
        assert done.returncode == 1, "a token is good once"
        waiting.send_signal(signal.SIGINT)
        said += waiting.stdout.readlines()
    assert f"{server}: enrolled\n" in said and any("was used before" in line for line in said)
    watched.look("".join(said).encode(), "what `controller enrol` said")
    watched.add_key(Path(identity))
    return file


def test_no_secret_is_anywhere_but_where_it_belongs(
    cluster: TestCluster, untouched: None, tmp_path: Path
) -> None:
    """No log, journal, process list, preview or report has tokens, keys or a job's variables."""
    lab, watched = lab_of(cluster), Watched()
    password = secrets.token_hex(20)
    watched.add("the job's password", password)
    tokens = tmp_path / "tokens"
    keys = [lab.state_directory / "ca" / "authority.key",
            *(lab.directory / s / "certificates" / f"{s}.key" for s in SERVERS)]  # fmt: skip
    for key in keys:
        watched.add_key(key)
    document = cluster.document()
    for server in document["cluster"]["servers"]:
        server["devices"][0]["memory"] = "2GiB"
    document["solve"] = {"engine": "single"}
    document["job"] |= {"env": {"PASSWORD": password}, "steps": 40}
    plan = cluster.plan(document, "secret")
    shown, report = cluster.folder / "secret.shown.json", cluster.folder / "secret.run.json"
    apply = ("apply", str(shown), "--yes", "--out", str(report))
    job = ("the job's password",)
    with watched.watching_processes(job):
        config = enrolled(cluster, lab, "s2", tokens, watched)
        end_agent(cluster, "s2")
        start_agent(lab, "s2", config)
        try:
            said = [
                cluster.run("preview", str(plan), "--out", str(shown)),
                cluster.run(*apply),
                cluster.run("history", "--json", "--state-dir", str(lab.state_directory)),
                cluster.run("logs", str(plan), "--state-dir", str(lab.state_directory)),
                cluster.run("status", str(plan), "--json"),
            ]
        finally:
            end_agent(cluster, "s2")
            start_agent(lab, "s2", lab.directory / "s2" / "agent.json")
    assert [one.code for one in said] == [0] * 5, [one.told for one in said]
    for one in said:
        watched.look(one.output.encode(), "what a command said")
    own = {*keys, lab.directory / "s2" / "agent" / "agent.pem"}
    files = [file for file in lab.directory.rglob("*") if file.is_file() and file not in own]
    for file in (*files, shown, report):
        watched.look(file.read_bytes(), f"file {file}")
    names = {file.name for file in files}
    assert {"journal.sqlite3", "refused.jsonl", "agent.log", "audit.jsonl"} <= names
    assert any(file.parent.parent.name == "logs" for file in files), "what ranks printed"
    assert password in plan.read_text() and b"PASSWORD" in shown.read_bytes()
    assert len(watched.values) >= 12 and watched.looked_at > 1000
    assert watched.found == set()


# -- cables and servers ----------------------------------------------------------------------------


@contextmanager
def crosswise(cluster: TestCluster, server: str) -> Iterator[None]:
    """Swaps this server's two cables, at the ends of the rails."""
    index = SERVERS.index(server) + 1
    spaces = {rail: f"pw-{cluster.name}-rail-{rail}" for rail in "ab"}

    def exchange(names: dict[str, str], after: dict[str, str]) -> None:
        for rail, other in (("a", "b"), ("b", "a")):
            move = ["link", "set", names[rail], "netns", spaces[other], "name", f"moved{rail}"]
            subprocess.run(["ip", "-n", spaces[rail], *move], check=True)
        for rail, other in (("a", "b"), ("b", "a")):
            into = ["link", "set", f"moved{rail}", "name", after[rail], "master", "rail", "up"]
            subprocess.run(["ip", "-n", spaces[other], *into], check=True)

    down = dict.fromkeys("ab", f"down{index}")
    exchange(down, down)
    try:
        yield
    finally:
        exchange(down, down)


def test_rails_wired_crosswise_are_found_by_the_measurement(
    cluster: TestCluster, untouched: None
) -> None:
    plan = cluster.script_plan("crosswise")
    with crosswise(cluster, "s3"):
        done = cluster.run("apply", plan, "--network-only", "--yes")
    assert done.code == 6, done.told
    assert "s3 nic0 and nic1 are wired crosswise" in done.output, done.told
    assert "nic0 (rail a) is on rail b, nic1 (rail b) on rail a" in done.output
    assert "s3 nic0, s3 nic1: " in done.output and "measuring again" not in done.output


def test_a_server_that_goes_halfway_is_named_and_all_is_undone(
    cluster: TestCluster, untouched: None
) -> None:
    """Its agent is killed during the measurement, and runs again while the others restore."""
    lab, plan = lab_of(cluster), cluster.script_plan("halfway")
    config = lab.directory / "s2" / "agent.json"
    back: list[threading.Timer] = []

    def kill(process: Process) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not cluster.processes("iperf3", "s2") and time.monotonic() < deadline:
            time.sleep(0.02)
        (pid,) = cluster.processes("placewire.agent.main", "s2")
        os.kill(pid, signal.SIGKILL)
        back.append(threading.Timer(7.0, start_agent, (lab, "s2", config)))
        back[0].start()
        deadline = time.monotonic() + 10
        while cluster.processes("iperf3", "s2"):
            assert time.monotonic() < deadline, "one that waits would hold its port"
            time.sleep(0.02)

    done: Finished = cluster.run(
        "apply", plan, "--network-only", "--yes", on_line=once("measuring all promised", kill)
    )
    back[0].join()
    assert done.code == 5, done.told
    assert "s2: no answer from the agent" in done.output, done.told
