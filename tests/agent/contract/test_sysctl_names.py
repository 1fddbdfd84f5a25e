"""A sysctl's name is one that Placewire uses, whether a message, a disk or a mark has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from placewire.agent.contract.entries import SYSCTL_KEYS, Sysctl
from placewire.agent.contract.messages import Request, Stage
from placewire.agent.contract.state import LeaseState, Ledger, TakenOver
from placewire.agent.reconcile.lease import Kept
from placewire.agent.store import DiskStore, StoreError, read_kept
from tests.agent.states import desired_state

WRONG = {
    "net./etc/passwd": "one of rp_filter",
    "net.ipv4.conf./etc/cron.d/x.rp_filter": "no interface can have this name",
    "net.ipv4.conf.pw-nic0/../mgmt.rp_filter": "no interface can have this name",
    "net.ipv4.conf....rp_filter": "no interface can have this name",
    "net.ipv4.conf...rp_filter": "no interface can have this name",
    "net.ipv4.conf..rp_filter": "no interface can have this name",
    "net.ipv4.conf.rp_filter": "no interface can have this name",
    "net.ipv4.conf.nic0 .rp_filter": "no interface can have this name",
    "net.ipv4.conf.nic0\0.rp_filter": "no interface can have this name",
    "net.ipv4.conf.all.rp_filter": "a setting of the whole server",
    "net.ipv4.conf.default.arp_ignore": "a setting of the whole server",
    "net.ipv4.conf.nic0.forwarding": "one of rp_filter",
    "net.ipv4.conf.nic0.rp_filter\n": "one of rp_filter",
    "net.ipv6.conf.nic0.rp_filter": "one of rp_filter",
    "net.ipv4.ip_forward": "one of rp_filter",
    "net.core.bpf_jit_enable": "one of rp_filter",
    "kernel.core_pattern": "one of rp_filter",
    "": "one of rp_filter",
}


@pytest.mark.parametrize(("name", "why"), WRONG.items())
def test_no_other_name_is_a_sysctl_s(name: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Sysctl(name=name, value="1")


@pytest.mark.parametrize("name", WRONG)
def test_no_message_and_no_disk_has_another_name(tmp_path: Path, name: str) -> None:
    stage = Stage(desired=desired_state(), lease_seconds=60).model_dump(mode="json")
    TypeAdapter(Request).validate_python(stage)
    stage["desired"]["sysctls"][0]["name"] = name
    with pytest.raises(ValidationError, match=r"sysctls\.0\.name"):
        TypeAdapter(Request).validate_python(stage)

    wrong = Sysctl.model_construct(name=name, value="1")
    DiskStore(tmp_path).save(Kept(ledger=Ledger.model_construct(sysctls=(wrong,))))
    with pytest.raises(StoreError, match="not a state that this version"):
        read_kept(tmp_path)


@pytest.mark.parametrize("interface", ["nic0", "pw-nic0", "eth0.100", "enp65s0f0np0.100"])
@pytest.mark.parametrize("key", SYSCTL_KEYS)
def test_the_names_that_every_release_wrote_are_read(
    tmp_path: Path, interface: str, key: str
) -> None:
    """As release 0.1.0 wrote its state: one line, version 1."""
    sysctl = {"name": f"net.ipv4.conf.{interface}.{key}", "value": "0"}
    state = {
        "version": 1,
        "lease": LeaseState(phase="committed", generation=1).model_dump(mode="json"),
        "ledger": {"nics": [{"nic": interface, "addresses": []}], "sysctls": [sysctl]},
    }
    (tmp_path / "state.json").write_text(json.dumps(state))
    (read,) = read_kept(tmp_path).ledger.sysctls
    assert (read.name, read.interface) == (sysctl["name"], interface)


def test_what_a_nic_held_has_its_own_sysctls_alone() -> None:
    theirs = Sysctl(name="net.ipv4.conf.mgmt.rp_filter", value="0")
    with pytest.raises(ValidationError, match=r"mgmt\.rp_filter is no sysctl of NIC nic0"):
        TakenOver(nic="nic0", addresses=(), sysctls=(theirs,))
