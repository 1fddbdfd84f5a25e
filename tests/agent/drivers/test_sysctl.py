"""Settings of an interface whose name has dots: the kernel's own files, in a namespace."""

from __future__ import annotations

import subprocess
import sys

import pytest

from placewire.agent.drivers.sysctl import path_of, read_values
from placewire.agent.reconcile.effects import EffectError

NAME = "eth0.100"
# Writes and reads back through the driver alone, and looks where the kernel has it.
IN_THE_NAMESPACE = f"""
import subprocess
from pathlib import Path
from placewire.agent.contract.entries import Sysctl
from placewire.agent.drivers.sysctl import change_sysctls, read_sysctls
from placewire.agent.reconcile.steps import EntryStep

subprocess.run(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "{NAME}"], check=True)
wanted = Sysctl(name="net.ipv4.conf.{NAME}.arp_ignore", value="1")
change_sysctls([EntryStep(None, wanted)])
assert read_sysctls([wanted.name]) == [wanted]
assert Path("/proc/sys/net/ipv4/conf/{NAME}/arp_ignore").read_text() == "1\\n"
assert Path("/proc/sys/net/ipv4/conf/eth0/arp_ignore").read_text() == "0\\n"
"""


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.ipv4.conf.nic0.rp_filter", "net/ipv4/conf/nic0/rp_filter"),
        (f"net.ipv4.conf.{NAME}.rp_filter", f"net/ipv4/conf/{NAME}/rp_filter"),
        ("net.ipv4.conf.a.b.c.rp_filter", "net/ipv4/conf/a.b.c/rp_filter"),
        ("net.core.rmem_max", "net/core/rmem_max"),
    ],
)
def test_dots_of_an_interface_are_part_of_its_name(name: str, path: str) -> None:
    assert str(path_of(name)) == f"/proc/sys/{path}"


@pytest.mark.parametrize(
    "name",
    [
        "net./etc/passwd",
        "net.ipv4.conf./etc/passwd",
        "net.ipv4.conf.pw-nic0/../mgmt.rp_filter",
        "net.ipv4.conf..rp_filter",
        "net.ipv4.conf...rp_filter",
        "net.ipv4.conf....rp_filter",
        "/etc/passwd",
        "..",
        "",
    ],
)
def test_no_name_leads_out_of_the_settings(name: str) -> None:
    with pytest.raises(EffectError, match="no name of a kernel setting"):
        path_of(name)


def test_settings_of_the_whole_server_are_read_and_missing_ones_left_out() -> None:
    names = ("net.ipv4.conf.all.rp_filter", "net.ipv4.conf.no-such-nic.rp_filter")
    assert read_values(names).keys() == {"net.ipv4.conf.all.rp_filter"}


@pytest.mark.network
def test_the_interface_with_a_dot_is_set_and_no_other() -> None:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", IN_THE_NAMESPACE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
