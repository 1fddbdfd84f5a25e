"""A rank, an agent and the controller are killed in a real lab, and the promises for it are kept.

One training is interrupted in each test, and ends in the last test with the parameters of a
training that was never interrupted.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from placewire.controller.lab import find_lab
from placewire.job.contract.checkpoint import checkpoints_in
from placewire.job.messages.rank_messages import RankMessages
from placewire.job.placed.lower import lower
from placewire.job.placed.plain_state import read_checkpoint
from placewire.job.transport.transport import Alone
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from tests.end_to_end.cluster import SERVERS, Process, TestCluster, once, read_report
from tests.paths import ROOT
from tests.placements import cluster_of, placement_of

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.thorough]

MODEL, BATCH = "placewire.examples.models.mlp:training_step", 16
LEASE_SECONDS = 10
# A lease that must not run out: an agent takes seconds to come back while ranks use every core.
LONG_LEASE_SECONDS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


def training(
    cluster: TestCluster, folder: Path, *, steps: int, every: int = 4, lease: int = LEASE_SECONDS
) -> str:
    document = cluster.document()
    document["network"]["lease"] = f"{lease}s"
    document["job"] |= {
        "model": MODEL, "batch": BATCH, "steps": steps,
        "checkpoint": {"folder": str(folder), "every": every},
    }  # fmt: skip
    return str(cluster.plan(document, "training"))


def last_with(words: str, cluster: TestCluster) -> str:
    """The last server with such a process. The placement decides which servers have ranks; the
    first rank is on the first of these servers only."""
    return [server for server in SERVERS if cluster.processes(words, server)][-1]


def last_step(folder: Path) -> int:
    return checkpoints_in(folder)[-1].manifest.step


def test_a_killed_rank_ends_the_job_and_the_report_names_it(
    cluster: TestCluster, untouched: None, folder: Path
) -> None:
    killed: list[tuple[str, float]] = []

    def kill_one(process: Process) -> None:
        server = last_with("placewire.job", cluster)
        os.kill(cluster.processes("placewire.job", server)[0], signal.SIGKILL)
        killed.append((server, time.monotonic()))

    report_file = cluster.folder / "killed.json"
    arguments = ("apply", training(cluster, folder, steps=4000), "--yes", "--out", str(report_file))
    done = cluster.run(*arguments, on_line=once("checkpoint after 8 steps", kill_one))
    assert done.code == 7, done.told
    assert time.monotonic() - killed[0][1] < 30
    report = read_report(report_file)
    assert report["failure"]["server"] == killed[0][0]
    assert f"rank {report['failure']['rank']} was killed by SIGKILL" in report["failure"]["what"]
    assert report["failure"]["what"] in done.output
    # On a busy machine ranks may save once more before one is killed.
    reached = report["checkpoint"]["step"]
    assert reached == last_step(folder) >= 8
    assert f"last checkpoint: after {reached} steps" in done.output


def start_agent(cluster: TestCluster, server: str) -> subprocess.Popen[bytes]:
    """Starts the agent as systemd would after it was killed."""
    lab = find_lab(cluster.name)
    assert lab is not None
    config = lab.directory / server / "agent.json"
    program = [sys.executable, "-m", "placewire.agent.main", "run", "--config", str(config)]
    return subprocess.Popen(
        lab.inside_server(server, program),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=lab.environment,
        start_new_session=True,
    )


def test_a_killed_controller_leaves_the_job_running_for_its_lease(
    cluster: TestCluster, untouched: None, folder: Path
) -> None:
    plan = training(cluster, folder, steps=4000)
    before, reached = cluster.snapshots(), last_step(folder)
    saved = f"checkpoint after {reached + 4} steps"
    done = cluster.run("apply", plan, "--yes", on_line=once(saved, lambda p: p.kill()))
    killed = time.monotonic()
    assert done.code == -signal.SIGKILL
    assert f"resumed after {reached} steps" in done.output
    status = cluster.run("status", plan)
    assert status.code == 0, status.told
    assert status.output.count("a rank runs on") == len(cluster.ranks()) > 1, status.told
    assert "its controller is gone" in status.output
    while last_step(folder) <= reached + 4:
        assert time.monotonic() < killed + 20, "it did not go on"
        time.sleep(0.1)
    assert cluster.snapshots() != before
    while cluster.ranks() and time.monotonic() < killed + 30:
        time.sleep(0.2)
    assert cluster.ranks() == [], "the lease ran out"
    while cluster.snapshots() != before and time.monotonic() < killed + 40:
        time.sleep(0.5)


def test_a_killed_agent_is_no_loss_while_its_lease_holds(
    cluster: TestCluster, untouched: None, folder: Path
) -> None:
    """The interrupted training ends here, equal to one that was never interrupted."""
    server: list[str] = []
    killed: list[threading.Timer] = []
    restarted: list[subprocess.Popen[bytes]] = []
    steps_after: list[str] = []

    def restart() -> None:
        restarted.append(start_agent(cluster, server[0]))

    def on_line(line: str, process: Process) -> None:
        if re.search(r"step \d+: ", line) is None:
            return
        if not killed:
            server.append(last_with("placewire.job", cluster))
            (agent,) = cluster.processes("placewire.agent.main", server[0])
            os.kill(agent, signal.SIGKILL)
            killed.append(threading.Timer(1.5, restart))
            killed[0].start()
        elif restarted:
            steps_after.append(line)

    reached = last_step(folder)
    steps = reached + 60
    report_file = cluster.folder / "resumed.json"
    plan = training(cluster, folder, steps=steps, every=20, lease=LONG_LEASE_SECONDS)
    done = cluster.run("apply", plan, "--yes", "--out", str(report_file), on_line=on_line)
    assert done.code == 0, done.told
    assert steps_after, "too quick to show anything"
    report = read_report(report_file)
    assert report["first_step"] == report["resumed"]["step"] == reached
    assert report["checkpoint"]["step"] == steps == reached + len(report["losses"])
    assert_equal_to_one_unbroken_rank(Path(report["checkpoint"]["path"]), steps)


def assert_equal_to_one_unbroken_rank(checkpoint: Path, steps: int) -> None:
    torch.set_num_threads(1)
    captured = capture(MODEL, BATCH, OptimizerChoice("adamw", 1e-3), 0)
    graph, one = captured.operators, cluster_of(1)
    placement = placement_of(graph, one, dict.fromkeys(graph.ids, one.device_names[0]))
    program = lower(captured, placement, one.device_names[0], RankMessages({}, ()), Alone())
    with torch.no_grad():
        for step in range(steps):
            program.tell(step)
            batch = captured.batches(step)
            program.module(*(batch[position] for position in program.inputs))
    saved = read_checkpoint(checkpoint)
    for identifier, value in program.held.items():
        (part,) = captured.names.of[identifier]
        (name,) = part.names
        assert torch.equal(saved["model"][name.name], value), name
        state = program.updates[identifier].state(value, steps)
        for key, tensor in state.items():
            assert torch.equal(saved["optimizer"]["state"][name.name][key], tensor), (name, key)
    assert len(program.held) == len(saved["model"])
