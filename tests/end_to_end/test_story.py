"""Runs the commands of the tutorial, from agents that dial in to a job and a destroyed network.

The network is kept, changed, rolled back and destroyed. An sshd on each server starts the ranks.
"""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from placewire.controller.lab import find_lab
from placewire.controller.plan.plan_file import load_plan
from tests.controller.launch.sshd import Keys, make_keys, running_sshd
from tests.end_to_end.cluster import (
    NIC_BITS_PER_SECOND,
    SERVERS,
    TIGHT_MEMORY,
    TestCluster,
    read_report,
)
from tests.end_to_end.snapshots import differences, without_row_numbers
from tests.paths import ROOT

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.thorough]

STEPS = 4
# A user's own model, which is copied to every server into the plan's `workdir`.
MODEL = """
from placewire.examples.models import mlp

def training_step(batch, seed):
    print("a model of my own")
    return mlp.training_step(batch, seed)
"""


@contextmanager
def reached_over_ssh(cluster: TestCluster) -> Iterator[Keys]:
    """Runs an sshd on every server, whose host key the user knows."""
    keys = make_keys(cluster.folder / "story-ssh")
    with ExitStack() as daemons:
        for number, server in enumerate(SERVERS, start=1):
            address = f"10.9.0.{number}"
            keys.know(address, 22)
            inside = ["ip", "netns", "exec", cluster.namespace(server)]
            daemons.enter_context(running_sshd(keys, address, 22, inside))
        yield keys


def edit(plan: Path, changes: Mapping[str, str]) -> None:
    """Replaces every match of each pattern, of which there must be one, as with an editor."""
    text = plan.read_text()
    for pattern, written in changes.items():
        text, found = re.subn(pattern, written, text)
        assert found, f"{pattern}: not in\n{text}"
    plan.write_text(text)


def test_from_servers_that_dial_in_to_a_job_and_back(cluster: TestCluster, untouched: None) -> None:
    lab = find_lab(cluster.name)
    assert lab is not None
    folder = cluster.folder / "story"
    folder.mkdir()
    (folder / "own_model.py").write_text(MODEL)
    file, shown, report_file = (folder / name for name in ("plan.yaml", "shown.json", "run.json"))

    def controller(command: str, *arguments: str | Path, to: str = "") -> str:
        done = cluster.as_a_user().run(command, *map(str, arguments))
        assert done.code == 0 and to in done.output, done.told
        return done.output

    options = ("--lab", cluster.name, "--model", "own_model:training_step")
    controller("init", *SERVERS, *options, "--out", file, to="look through it")
    assert "# docs/plan.md says what else a plan can have." in file.read_text()
    assert load_plan(file).rails == ("a", "b")
    with reached_over_ssh(cluster) as keys:
        edit(file, {
            r"(?<=rate: )\w+": f"{NIC_BITS_PER_SECOND:.0f}bit",
            r"(?<=memory: )\w+": TIGHT_MEMORY,
            r"(?<=setup_latency: )\w+": "200us",
            r"(?<=steps: )\d+": str(STEPS),
            # Two thirds of the variants less to profile: memory is tight.
            r"(?<=batch: )\d+": "16\n  recompute: none",
            r"  # python, workdir, env: .*": f"  python: {sys.executable}\n  workdir: {folder}\n"
            f"  env: {{PYTHONPATH: {ROOT}}}",
            r"# launch: .*": f"launch: {{kind: ssh, user: {getpass.getuser()}, key: {keys.user}, "
            f"known_hosts: {keys.known_hosts}}}",
            r"(?<=time_limit: )\w+": "2s",
            r"(?<=sharing: )\w+": "strict",
            r"tolerance: 10%, seconds: 3": "tolerance: 30%, seconds: 1",
            r"(?<=on_exit: )\w+": "keep",
        })  # fmt: skip
        controller("preview", file, "--out", shown, to="+ queue")
        assert differences(cluster.new, cluster.snapshots()) == []

        page_file = folder / "page.html"
        pages = ("--report", page_file)
        said = controller("apply", shown, "--yes", "--out", report_file, *pages)
        assert "predicted" in said and "measured" in said
        report = read_report(report_file)
        assert len(report["losses"]) == STEPS and report["network"] == "kept"
        assert report["server_pairs"] and all(row["within_tolerance"] for row in report["links"])
        assert cluster.ranks() == []

        status = cluster.run("status", str(file), "--json")
        assert status.code == 0, status.told
        leases = [server["lease"] for server in status.document["servers"].values()]
        assert [lease["phase"] for lease in leases] == ["committed"] * len(SERVERS)
        assert {lease["plan_digest"] for lease in leases} == {report["plan_digest"]}
        page = page_file.read_text()
        for part in ("rail a", "How busy the NICs were", "The steps", "Where the layers run"):
            assert part in page
        assert len(report["nic_use"]["nics"]) == 2 * len(SERVERS)
        controller("report", file, "--out", page_file)
        assert page_file.read_text() == page
        logs = controller("logs", cluster.name)
        assert {line.partition(" ")[2] for line in logs.splitlines() if "a model" in line} >= {
            f"rank {rank} | a model of my own" for rank in range(2)
        }
        kept = cluster.snapshots()

        edit(file, {r"(?<=rate: )\w+": f"{NIC_BITS_PER_SECOND * 0.8:.0f}bit"})
        unmeasured = ("--network-only", "--no-measurement", "--yes")
        assert "the network stays as it is" in controller(
            "apply", file, *unmeasured, to="nothing is measured"
        )
        assert cluster.snapshots() != kept
        controller("rollback", file, "--yes", to="kept: s1 ")
        # The other rate may have had another placement, whose queues replaced those kept before.
        after = cluster.snapshots()
        assert differences(without_row_numbers(kept), without_row_numbers(after)) == []
        controller("destroy", file, "--yes", to="every server is as it was before")
    assert "nothing of plan" in cluster.run("verify", str(file)).output
