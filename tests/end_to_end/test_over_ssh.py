"""Ranks of the main job are started over SSH, by an sshd on each server of the lab."""

from __future__ import annotations

import getpass
import re
import sys
from contextlib import ExitStack

import pytest

from tests.controller.launch.sshd import make_keys, running_sshd
from tests.end_to_end.cluster import SERVERS, TestCluster, read_report
from tests.paths import ROOT

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.thorough]


def test_ranks_are_started_over_ssh(cluster: TestCluster, untouched: None) -> None:
    """Every server has an sshd, and gets files over SSH only, as in a real cluster."""
    keys, report_file = make_keys(cluster.folder / "ssh"), cluster.folder / "ssh.run.json"
    document = cluster.document()
    document["job"] |= {"python": sys.executable, "workdir": str(ROOT)}
    document["launch"] = {
        "kind": "ssh", "user": getpass.getuser(), "key": str(keys.user),
        "known_hosts": str(keys.known_hosts),
    }  # fmt: skip
    plan = str(cluster.plan(document, "ssh"))
    with ExitStack() as daemons:
        for number, server in enumerate(SERVERS, start=1):
            address = f"10.9.0.{number}"
            if server != SERVERS[-1]:
                keys.know(address, 22)
            inside = ["ip", "netns", "exec", cluster.namespace(server)]
            daemons.enter_context(running_sshd(keys, address, 22, inside))
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
