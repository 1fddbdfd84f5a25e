"""Ranks of the main job are started over SSH, by an sshd on each server of the lab."""

from __future__ import annotations

import getpass
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.controller.launch.sshd import Keys, make_keys, running_sshd
from tests.end_to_end.cluster import SERVERS, TestCluster, read_report
from tests.end_to_end.scripts import SUMS, require_that_sums_used_every_nic
from tests.paths import ROOT

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.slow]
# Makes the interpreter of an installed agent of this environment, where only what follows sees it.
INSTALLED = """
mount -t tmpfs none /opt
mkdir /opt/placewire
ln -s "$0" /opt/placewire/.venv
exec "$@"
"""


def launched_by(keys: Keys) -> dict[str, Any]:
    return {
        "kind": "ssh", "user": getpass.getuser(), "key": str(keys.user),
        "known_hosts": str(keys.known_hosts),
    }  # fmt: skip


@contextmanager
def daemons(cluster: TestCluster, keys: Keys, within: Sequence[str] = ()) -> Iterator[None]:
    """An sshd on each server. The last one's key is not known."""
    with ExitStack() as running:
        for number, server in enumerate(SERVERS, start=1):
            address = f"10.9.0.{number}"
            if server != SERVERS[-1]:
                keys.know(address, 22)
            inside = ["ip", "netns", "exec", cluster.namespace(server), *within]
            running.enter_context(running_sshd(keys, address, 22, inside))
        yield


@pytest.mark.thorough
def test_ranks_are_started_over_ssh(cluster: TestCluster, untouched: None) -> None:
    """Every server has an sshd, and gets files over SSH only, as in a real cluster."""
    keys, report_file = make_keys(cluster.folder / "ssh"), cluster.folder / "ssh.run.json"
    document = cluster.document()
    document["job"] |= {"python": sys.executable, "workdir": str(ROOT)}
    document["launch"] = launched_by(keys)
    plan = str(cluster.plan(document, "ssh"))
    with daemons(cluster, keys):
        refused = cluster.run("apply", plan, "--yes")
        assert refused.code == 7 and "s3 (10.9.0.3, port 22)" in refused.output, refused.told
        assert "host key is not known" in refused.output
        keys.know("10.9.0.3", 22)
        done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
        assert done.code == 0, done.told
        assert cluster.ranks() == []
    report = read_report(report_file)
    assert len(report["losses"]) == 3 and report["server_pairs"]
    assert report["network"] == "restored"
    # The profile is not on s1 where ranks of another test run on this machine at the time.
    assert re.search(r"profile on s[123] \(cpu\)", done.output), done.told
    for row in report["traffic"]:
        assert row["sent_bytes"] == pytest.approx(row["planned_bytes"], rel=0.01, abs=64)


def test_a_script_is_started_over_ssh_and_uses_every_nic(
    cluster: TestCluster, untouched: None
) -> None:
    keys, report_file = make_keys(cluster.folder / "scripts"), cluster.folder / "sums.run.json"
    document, script = cluster.document(), cluster.folder / "sums.py"
    script.write_text(SUMS)
    document["job"] = {
        "kind": "torchrun", "script": script.name, "workdir": str(cluster.folder),
        "python": sys.executable,
    }  # fmt: skip
    document["launch"] = launched_by(keys)
    del document["solve"], document["network"]["sharing"]
    keys.know("10.9.0.3", 22)
    environment = str(Path(sys.executable).parents[1])
    with daemons(cluster, keys, ["sh", "-ec", INSTALLED, environment]):
        plan = str(cluster.plan(document, "sums"))
        done = cluster.run("apply", plan, "--yes", "--out", str(report_file))
        assert done.code == 0, done.told
    require_that_sums_used_every_nic(done.output, read_report(report_file))
