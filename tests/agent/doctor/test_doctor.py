"""What `agent doctor` concludes from facts alone, and how it reads the output of other programs."""

from __future__ import annotations

import json
import os
import pwd
import stat
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.capabilities import LEAF_QDISCS, TrafficControl
from placewire.agent.contract.diagnosis import Finding
from placewire.agent.contract.entries import (
    Bridge,
    Route,
    Rule,
    UnusedRow,
    bridge_name,
)
from placewire.agent.contract.state import ForeignEntry, LeaseState, ObservedState
from placewire.agent.doctor.checks_others import _PLACES, SERVICES
from placewire.agent.doctor.facts import Facts, OtherFacts, OwnFacts, SocketFacts, SwitchFacts
from placewire.agent.doctor.findings import exit_code, findings
from placewire.agent.doctor.gather_others import (
    dropping_chains,
    keeps_foreign,
    named_tables,
    naming_chains,
    networkctl_managed,
    nmcli_managed,
)
from placewire.agent.doctor.show import document, print_findings
from placewire.agent.doctor.sockets import mode_allows, socket_facts
from placewire.agent.drivers.switch_view import SwitchView
from placewire.agent.reconcile.foreign_kinds import INTERFACE_RULES
from placewire.agent.reconcile.unknown_marks import TAKE_BACK
from tests.agent.observed_states import nic
from tests.agent.server_under_test import ServerUnderTest
from tests.paths import ROOT

IDLE = LeaseState(phase="idle", generation=0)
CLEAN = Facts(
    server="s1",
    agent_user="placewire",
    missing_tools=(),
    kernel_version="6.1",
    traffic_control=TrafficControl(known=True, qdiscs=("htb", *LEAF_QDISCS), classifiers=("u32",)),
    offloading=(),
    protected=("mgmt",),
    switch=SwitchFacts(
        version="3.1.0", unreadable=None, datapath="system",
        sockets=(SocketFacts(path="/run/db.sock", there=True, writable=True),),
    ),
    others=OtherFacts(),
    own=OwnFacts(
        state_dir="/var/lib/placewire", lease=IDLE, state_unreadable=None, free_bytes=10**9,
        agent_running=True, controller_url="https://c:7440", way_to_controller=("10.9.0.1",),
        clock_synchronised=True,
    ),
    observed=ObservedState(
        nics=(
            nic("mgmt", "10.9.0.1/24"), nic("nic0", "10.7.0.1/24"), nic("nic1", "10.7.1.1/24")
        )
    ),
)  # fmt: skip
NETDEV = {"switch.datapath": "netdev", "switch.send_buffer_bytes": 8 * 1024 * 1024}
PW_NIC0 = Bridge(name="pw-nic0", nic="nic0", datapath="system")


def facts(**changes: Any) -> Facts:
    """The facts of a server in order, with changes; `part.name` changes a name within a part."""
    document = CLEAN.model_dump()
    for name, value in changes.items():
        part, _, leaf = name.rpartition(".")
        (document[part] if part else document)[leaf] = value
    return Facts.model_validate(document)


def nics(*more: Any) -> dict[str, Any]:
    """Replaces nic0, or adds NICs."""
    new = {one.name: one for one in more}
    there = {one.name: one for one in CLEAN.observed.nics} | new
    return {"observed.nics": tuple(there.values())}


def socket(**changes: Any) -> dict[str, Any]:
    given = {"path": "/run/db.sock", "there": True, "writable": True, "owner": "root:root 0750"}
    return {"switch.sockets": ({**given, **changes},)}


def lease(phase: str, **changes: Any) -> dict[str, Any]:
    return {"own.lease": {"phase": phase, "generation": 4, "detail": "nic0 is gone"}, **changes}


def rule_of(interface: str, priority: int = 9) -> ForeignEntry:
    """As the driver tells a rule of others that names an interface."""
    text = f"priority {priority} from all iif {interface} table 7"
    return ForeignEntry(
        collection=INTERFACE_RULES, key=text, text=text, remedy=f"ip rule del {text}"
    )


NO_HTB = TrafficControl(known=True, classifiers=("u32",))
NO_U32 = TrafficControl(known=True, qdiscs=("htb",))
FAST = 100_000_000_000

# (severity, where, what, how the facts differ from those of a server in order).
CASES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "tool": ("error", "tools", "tc is not installed", {"missing_tools": ("tc",)}),
    "no switch": ("error", "Open vSwitch", "is not installed", {"switch.version": None}),
    "old switch": ("error", "Open vSwitch", "version 2.17.9 (ovs_version in its database, ",
                   {"switch.version": "2.17.9-1ubuntu2"}),
    "no socket": ("error", "/run/db.sock", "no such socket", socket(there=False, writable=None)),
    "socket": ("error", "/run/db.sock", "placewire may not write it (root:root 0750)",
               socket(writable=False)),
    "unreadable": ("error", "Open vSwitch", "no answer", {"switch.unreadable": "no answer"}),
    "offloaded flows": ("warning", "Open vSwitch", "hw-offload", {"switch.hardware_offload": True}),
    "userspace": ("note", "Open vSwitch", "the userspace datapath", NETDEV),
    "tun": ("error", "/dev/net/tun", "does not exist", {**NETDEV, "switch.tun": False}),
    "send buffer": ("warning", "net.core.wmem_default", "is 212992",
                    {**NETDEV, "switch.send_buffer_bytes": 212992}),
    "kernel unknown": ("note", "kernel 6.1", "could not be queried",
                       {"traffic_control": TrafficControl()}),
    "no htb": ("error", "kernel 6.1", "has no HTB", {"traffic_control": NO_HTB}),
    "no u32": ("error", "kernel 6.1", "no u32", {**NETDEV, "traffic_control": NO_U32}),
    "34 gigabit": ("warning", "NIC nic0", "Open vSwitch 3.1.0 can count",
                   nics(nic("nic0", speed_bits_per_second=FAST))),
    "software htb": ("warning", "NIC nic0", "faster than software HTB",
                     {"switch.version": "3.2.0", **nics(nic("nic0", speed_bits_per_second=FAST))}),
    "rdma": ("note", "NIC nic0", "can do RDMA", nics(nic("nic0", rdma=True))),
    "qdisc": ("warning", "NIC nic0", "has a tbf", nics(nic("nic0", root_qdisc="tbf"))),
    "bridged": ("warning", "NIC nic0", "is already a port of br0",
                nics(nic("nic0", driver="mlx5_core", bridge="br0"))),
    "container": ("note", "NIC nic0", "is already a port of br0", nics(nic("nic0", bridge="br0"))),
    "dhcp": ("warning", "NIC nic0", "for a limited time",
             nics(nic("nic0", "10.7.0.1/24", address_commands=("10.7.0.1/24 dynamic",)))),
    "carrier": ("warning", "NIC nic0", "no carrier", nics(nic("nic0", carrier=False))),
    "advertised": ("warning", "NIC nic0", "of a router's advertisement",
                   nics(nic("nic0", address_commands=("fd00::1/64 scope 0 dynamic",)))),
    "subnet": ("warning", "address 10.7.0.1/24", "overlaps with 10.7.0.9/16 of br0",
               nics(nic("br0", "10.7.0.9/16", driver="bridge"), nic("nic1"))),
    "no way": ("warning", "controller", "no route to https://c:7440",
               {"own.way_to_controller": ()}),
    "management": ("note", "NIC mgmt", "carries 10.9.0.1", {"protected": ()}),
    "unnumbered management": ("note", "NIC mgmt", "is the way to the controller",
                              {"protected": (), "own.way_to_controller": ("10.10.0.1",),
                               "own.controller_interfaces": ("mgmt",)}),
    "service": ("warning", "dhclient", "runs", {"others.services": ("dhclient",)}),
    "manager": ("warning", "NetworkManager", "runs and manages nic1",
                {"others.services": ("NetworkManager",),
                 "others.managed": (("NetworkManager", ("mgmt", "nic1")),)}),
    "networkd": ("warning", "systemd-network", "manages nic0",
                 {"others.services": ("systemd-network",),
                  "others.managed": (("systemd-network", ("nic0",)),)}),
    "tame networkd": ("note", "systemd-network", "manages nic0",
                      {"others.services": ("systemd-network",),
                       "others.managed": (("systemd-network", ("nic0",)),),
                       "others.networkd_keeps_foreign": True}),
    "ufw": ("warning", "ufw", "is enabled", {"others.ufw_enabled": True}),
    "nftables": ("warning", "nftables inet filter input", "drops",
                 {"others.dropping": ("inet filter input",)}),
    "nftables by interface": (
        "warning", "nftables inet filter input", "has rules for nic0 and none for pw-nic0",
        {"others.naming": (("inet filter input", ("lo", "mgmt", "nic0")),)},
    ),
    "nftables by wildcard": (
        "warning", "nftables ip nat leaving", "has rules for nic1 and none for pw-nic1",
        {"others.naming": (("ip nat leaving", ("nic*", "pw-nic0")),)},
    ),
    "rule by interface": (
        "warning", "NIC nic0", "is named by the rule `priority 9 from all iif nic0 table 7`",
        {"observed.foreign": (rule_of("nic0"),)},
    ),
    "rule since": (
        "warning", "NIC nic0", "is named by the rule `priority 9 from all iif nic0 table 7`",
        {"observed.bridges": (PW_NIC0,), "own.taken_over": ("nic0",), **lease("committed"),
         **nics(nic("nic0", "10.7.0.1/24", bridge="pw-nic0", root_qdisc="htb")),
         "observed.foreign": (rule_of("nic0"),)},
    ),
    "arp": ("warning", "net.ipv4.conf.all.arp_ignore", "is 8",
            {"others.sysctls": (("net.ipv4.conf.all.arp_ignore", "8"),)}),
    "rp_filter": ("note", "net.ipv4.conf.all.rp_filter", "strict",
                  {"others.sysctls": (("net.ipv4.conf.all.rp_filter", "1"),)}),
    "table": ("warning", "routing table 8001", "is called storage",
              {"others.named_tables": ((8001, "storage"), (100, "other"))}),
    "file": ("error", "/etc/placewire/agent.key", "placewire cannot read it",
             {"own.unreadable_files": ("/etc/placewire/agent.key",)}),
    "clock": ("warning", "clock", "not synchronised", {"own.clock_synchronised": False}),
    "little room": ("warning", "/var/lib/placewire", "19.1 MiB", {"own.free_bytes": 20_000_000}),
    "no room": ("error", "/var/lib/placewire", "0.0 MiB", {"own.free_bytes": 1000}),
    "state": ("error", "/var/lib/placewire", "denied", {"own.state_unreadable": "denied"}),
    "failed": ("error", "generation 4", "restoring failed: nic0 is gone", lease("failed")),
    "no agent": ("error", "agent", "4 is committed, and no agent runs",
                 lease("committed", **{"own.agent_running": False})),
    "problem": ("warning", "ours", "bridge pw-x is down",
                {"observed.problems": ("bridge pw-x is down",)}),
    "left bridge": ("error", "bridges pw-nic0", "bear our mark",
                    {"observed.bridges": (PW_NIC0,)}),
    "left rule": ("error", "rules 18000 from 10.7.0.1/32", "bear our mark",
                  {"observed.rules": (Rule(priority=18000, source="10.7.0.1/32", table=8000),)}),
    "left route": ("error", "routes table 8000 10.7.0.0/24", "bear our mark",
                   {"observed.routes": (Route(table=8000, destination="10.7.0.0/24",
                                              interface="nic0", source="10.7.0.1"),)}),
    **{
        f"foreign {kind}": ("warning", f"{kind} key", "is not ours: text", {
            "observed.foreign": (ForeignEntry(collection=kind, key="key", text="text"),)})
        for kind in _PLACES
    },
    "something on our bridge": ("note", "pw-nic0", "has address 10.9.9.9/24, which is not ours", {
        "observed.foreign": (
            ForeignEntry(collection="addresses", key="pw-nic0 10.9.9.9/24", on="pw-nic0",
                         text="address 10.9.9.9/24",
                         remedy="ip address del 10.9.9.9/24 dev pw-nic0"),)}),
}  # fmt: skip


def test_a_server_in_order_has_no_findings() -> None:
    assert findings(CLEAN) == ()
    assert exit_code(()) == 0


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_found_with_its_reason_and_a_remedy(name: str) -> None:
    severity, where, what, changes = CASES[name]
    found = findings(facts(**changes))
    hits = [one for one in found if one.where == where and what in one.what]
    assert [one.severity for one in hits] == [severity], found
    assert all(one.why for one in found)
    assert all(one.remedy for one in found if one.severity != "note")
    # Nothing else is found, except what comes with the userspace datapath.
    assert {one.where for one in found} <= {where, "Open vSwitch"}, found
    assert exit_code(found) >= {"note": 0, "warning": 1, "error": 2}[severity]


def test_findings_are_worst_first_and_the_worst_is_the_exit_code() -> None:
    changes = CASES["rdma"][3] | CASES["clock"][3] | CASES["tool"][3]
    found = findings(facts(**changes))
    assert [one.severity for one in found] == ["error", "warning", "note"]
    assert [exit_code(found[n:]) for n in range(4)] == [2, 1, 0, 0]


def test_what_is_no_fault_is_not_found() -> None:
    told: dict[str, Any] = {
        "others.services": ("NetworkManager",), "others.managed": (("NetworkManager", ("mgmt",)),)
    }  # fmt: skip
    ours = nic("nic0", "10.7.0.1/24", bridge="pw-nic0", root_qdisc="htb")
    in_force = {"observed.bridges": (PW_NIC0,), **lease("committed"), **nics(ours)}
    for changes in (
        told,
        in_force,
        nics(nic("br0", "10.8.0.9/24", driver="bridge"), nic("tap0", "fd00::1/64", driver="tun")),
        {"traffic_control": NO_U32},
        {"own.clock_synchronised": None},
        {"own.lease": None},
        # What names a NIC names its bridge, too; and the management NIC is in no plan.
        {"others.naming": (("inet filter input", ("mgmt", "nic0", "pw-*")),)},
        {"observed.foreign": (rule_of("nic0"), rule_of("pw-nic0", 8), rule_of("mgmt"))},
        # A way by IPv6 alone.
        {"own.way_to_controller": (), "own.controller_interfaces": ("mgmt",)},
    ):
        assert findings(facts(**changes)) == (), changes


def test_a_long_nic_is_checked_with_the_bridge_name_that_a_plan_would_use() -> None:
    taken = ForeignEntry(collection="bridges", key=bridge_name("enp129s0f0np0"), text="interface")
    changed = facts(**nics(nic("enp129s0f0np0")), **{"observed.foreign": (taken,)})
    assert "exists, and is not ours" in [one.what for one in findings(changed)]


def test_remedies_can_be_obeyed_as_they_stand() -> None:
    held = {"observed.bridges": (PW_NIC0,)}
    stray = {"observed.unused_rows": (UnusedRow(table="Queue", uuid="12-ab"),)}
    remedies = [one.remedy for one in findings(facts(**held, **stray))]
    assert remedies == [
        TAKE_BACK,
        "ovs-vsctl destroy Queue 12-ab",
    ]
    for service in SERVICES:
        (found,) = findings(facts(**{"others.services": (service,)}))
        assert "{" not in found.remedy and found.why


def test_what_is_owed_is_an_error() -> None:
    owed = "NIC nic0 (02:00:00:00:00:01) was away and is owed address 10.7.0.1/24"
    (found,) = findings(facts(**{"own.owed": (owed,)}))
    assert found.severity == "error" and found.what == owed and "--give-up" in found.remedy


def test_what_networkd_leaves_alone() -> None:
    no_routes = "[Network]\nManageForeignRoutes=no\n"
    no_rules = "#ManageForeignRoutes=yes\nManageForeignRoutingPolicyRules = false\n"
    assert keeps_foreign([no_routes, no_rules])
    assert not keeps_foreign([no_routes])
    assert not keeps_foreign([no_routes, no_rules, "ManageForeignRoutes=yes"])


def test_what_services_say_that_they_manage() -> None:
    said = "nic0:connected\nnic1:unmanaged\neth0.7:disconnected\n"
    assert nmcli_managed(said) == ("nic0", "eth0.7")
    said = "  1 lo   loopback carrier     unmanaged\n  2 nic0 ether    routable    configured\n"
    assert networkctl_managed(said) == ("nic0",)


def test_named_tables_and_chains_that_drop_are_read() -> None:
    assert named_tables("# 1 x\n255\tlocal\n8001 storage # ours?\nodd line here\n") == [
        (255, "local"), (8001, "storage"),
    ]  # fmt: skip
    chain = {"family": "inet", "table": "filter", "name": "input", "hook": "input"}
    ruleset = [
        {"metainfo": {}}, {"chain": chain | {"policy": "drop"}},
        {"chain": chain | {"name": "open", "policy": "accept"}},
        {"chain": chain | {"name": "through", "hook": "forward", "policy": "drop"}},
        {"chain": {"family": "inet", "table": "filter", "name": "no-base"}},
    ]  # fmt: skip
    assert dropping_chains({"nftables": ruleset}) == ("inet filter input",)


def test_the_interfaces_that_rules_of_nftables_name_are_read() -> None:
    """As `nft -j list ruleset` of version 1.0.6 prints them."""
    by_name, by_number = ({"meta": {"key": key}} for key in ("iifname", "oif"))
    port = {"payload": {"protocol": "tcp", "field": "dport"}}

    def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
        return {"match": {"op": op, "left": left, "right": right}}

    expressions: list[list[Any]] = [
        [match(by_name, "nic0", "!="), match(port, 22), {"jump": {"target": "nic9"}}],
        [match(by_number, "nic1"), {"log": {"prefix": "nic8"}}],
        [match(by_name, {"set": ["nic2", "mgmt"]})],
        [match({"concat": [by_name, port]}, {"set": [{"concat": ["nic3", 22]}]})],
        [match(by_name, "@rails")],
        [{"vmap": {"key": by_name, "data": {"set": [["nic4", {"goto": {"target": "nic7"}}]]}}}],
        [{"vmap": {"key": by_name, "data": "@verdicts"}}],
        [match({"payload": {"protocol": "ip", "field": "saddr"}}, "10.7.0.2")],
    ]
    place = {"family": "inet", "table": "filter"}
    ruleset = [
        {"metainfo": {}},
        {"set": {**place, "name": "rails", "type": "ifname", "elem": ["eth*"]}},
        {"set": {**place, "table": "other", "name": "rails", "type": "ifname", "elem": ["x"]}},
        {"map": {**place, "name": "verdicts", "elem": [["nic5", {"drop": None}]]}},
        *({"rule": {**place, "chain": "input", "expr": one}} for one in expressions),
        {"rule": {**place, "chain": "other", "expr": [match(port, 22)]}},
    ]
    assert naming_chains({"nftables": ruleset}) == (
        ("inet filter input", ("eth*", "mgmt", *(f"nic{k}" for k in range(6)))),
    )
    assert naming_chains({}) == ()


@pytest.mark.parametrize(
    ("mode", "owner", "groups", "may"),
    [
        (0o750, (0, 0), [1000], False),
        (0o770, (0, 44), [1000, 44], True),
        (0o750, (0, 44), [1000, 44], False),
        (0o770, (1000, 0), [1000], True),
        (0o077, (1000, 0), [1000], False),
        (0o702, (0, 0), [1000], True),
    ],
)
def test_who_may_write_a_socket(
    mode: int, owner: tuple[int, int], groups: list[int], may: bool
) -> None:
    assert mode_allows(0o2, stat.S_IFSOCK | mode, owner, 1000, groups) is may
    assert mode_allows(0o2, mode, owner, 0, groups)


def test_sockets_are_looked_at_where_they_are(tmp_path: Path) -> None:
    server = ServerUnderTest(tmp_path, "", "")
    (tmp_path / "pw-nic0.mgmt").touch()
    here = pwd.getpwuid(os.geteuid())
    missing, there = socket_facts(server.config, ["pw-nic0"], here)
    assert (missing.path, missing.there) == (f"{tmp_path}/db.sock", False)
    assert there.there and there.writable
    remote = server.config.model_copy(update={"ovsdb_remote": "tcp:127.0.0.1:6640"})
    assert socket_facts(remote, [], here) == ()


def test_json_holds_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    changed = facts(**CASES["no htb"][3], **nics(nic("nic[0]", speed_bits_per_second=10**10)))
    found = findings(changed)
    written = json.loads(document(changed, found))
    assert written["exit_code"] == 2 and written["server"] == "s1"
    assert [Finding.model_validate(one) for one in written["findings"]] == list(found)
    print_findings(changed, found)
    shown = capsys.readouterr().out
    assert "has no HTB" in shown and "nic[0]" in shown
    assert "1 error, 1 warning, 0 notes" in shown, "a NIC of that name cannot be planned"
    assert max(map(len, shown.splitlines())) <= 100


def test_every_kind_of_foreign_entry_has_its_words() -> None:
    """Every kind that the drivers report."""
    source = ROOT / "agent" / "drivers"
    text = "".join(path.read_text() for path in source.glob("*.py"))
    for kind in ("bridges", "flows", "classifiers", "rules", "routes", "queues"):
        assert f'"{kind}"' in text and kind in _PLACES
    assert SwitchView.foreign_on_ours.__name__ in text and {"ports", "shapers"} <= set(_PLACES)
