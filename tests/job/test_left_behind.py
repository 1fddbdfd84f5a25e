"""What a model starts ends with its rank, also as a daemon in a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from placewire.controller.lab.processes import start_ticks
from placewire.job.contract.specification import RankSpec
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.placement import save_placement
from tests.controller.launch.rank_programs import runs
from tests.free_port import free_port
from tests.paths import ROOT
from tests.placements import cluster_of, placement_of, random_devices

LEAVES_A_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({mark!r} + ".part", "w").write(str(os.getpid()))
        os.rename({mark!r} + ".part", {mark!r})
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
while not os.path.exists({mark!r}): time.sleep(0.02)
raise ValueError("the model is wrong")
"""


def test_a_daemon_of_a_model_ends_with_the_rank(tmp_path: Path) -> None:
    mark = tmp_path / "daemon"
    (tmp_path / "leaving.py").write_text(LEAVES_A_DAEMON.format(mark=str(mark)))
    graph = capture("tests.models.hard:training_step", 4, OptimizerChoice(), 0).operators
    cluster = cluster_of(1, ())
    placement = placement_of(graph, cluster, random_devices(graph, cluster, 0), order_seed=0)
    save_placement(placement, tmp_path / "placement.json")
    spec = RankSpec(
        kind="placed", rank=0, world_size=1, device=placement.devices_used[0],
        master_address="127.0.0.1", master_tcp_port=free_port(), rail_interfaces=(),
        placement_file=str(tmp_path / "placement.json"), model="leaving:training_step", steps=1,
    )  # fmt: skip
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "placewire.job", str(tmp_path / "spec.json")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 1 and b"the model is wrong" in done.stdout, done.stderr
    deadline = time.monotonic() + 60
    while runs(int(mark.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)


ODD_NAME = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"\\xff) n", 0, 0, 0)
print("named", flush=True)
time.sleep(600)
"""
ENDS = """
import os, subprocess
from placewire.job.script.descendants import kill_descendants
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
kill_descendants(10)
try:
    os.kill(child.pid, 0)
except ProcessLookupError:
    print("ended")
"""


def test_a_process_of_another_user_whose_name_is_no_text_keeps_nothing_from_ending() -> None:
    """Any user of the server may have one, and every process of the server is looked at."""
    with subprocess.Popen([sys.executable, "-c", ODD_NAME], stdout=subprocess.PIPE) as odd:
        try:
            assert odd.stdout is not None and odd.stdout.readline() == b"named\n"
            done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True)
            assert (done.stdout, done.stderr) == ("ended\n", "")
            assert start_ticks(odd.pid) is not None
        finally:
            odd.kill()
