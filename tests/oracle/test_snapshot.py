"""A snapshot has every setting that the tools print, and nothing that changes by itself."""

from __future__ import annotations

import ast
import ctypes
import fcntl
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placewire.oracle import snapshot
from placewire.oracle.differences import differences
from placewire.oracle.namespace import SOURCE, taken_by
from tests.oracle.printed import (
    CLASS_FILTER,
    CLASSES,
    FILTERS,
    FLOWS,
    MQPRIO,
    NIC,
    QDISCS,
    ROUTES,
    RULES,
    changed,
    tables,
)


def compared(before: snapshot.Facts, now: snapshot.Facts) -> list[str]:
    version = snapshot.VERSION
    return differences({"version": version, "facts": before}, {"version": version, "facts": now})


def links(**changes: Any) -> snapshot.Facts:
    return snapshot.links_and_addresses([changed(NIC, **changes)])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"address": "02:fc:00:00:00:02"}, "MAC was 02:fc:00:00:00:01, is 02:fc:00:00:00:02"),
        ({"mtu": 9000}, "MTU was 1400, is 9000"),
        ({"flags": ["BROADCAST", "MULTICAST"]}, "up was yes, is no"),
        ({"master": "br0"}, "master was not set, is br0"),
        ({"altnames": ["enp1s0"]}, "alternative names was not set, is enp1s0"),
        (
            {"flags": ["BROADCAST", "MULTICAST", "UP", "PROMISC"]},
            "flags was BROADCAST and MULTICAST, is BROADCAST and MULTICAST and PROMISC",
        ),
    ],
)
def test_a_changed_link_is_told(changes: dict[str, Any], told: str) -> None:
    assert compared(links(), links(**changes)) == [f"link nic0: {told}"]


def test_what_a_link_does_by_itself_is_not_told() -> None:
    now = links(ifindex=9, operstate="DOWN", qdisc="htb", promiscuity=2, link_index=3,
                flags=["NO-CARRIER", "BROADCAST", "MULTICAST", "UP"])  # fmt: skip
    assert compared(links(), now) == []


@pytest.mark.parametrize(("flags", "expected"), [(1 << 15, True), (0x7FFF, False)])
def test_large_receive_offload_is_read(
    monkeypatch: pytest.MonkeyPatch, flags: int, expected: bool
) -> None:
    assert not snapshot.receives_large("lo") and not snapshot.receives_large("none")

    def ioctl(_: Any, command: int, request: bytes) -> None:
        assert (command, request[:5]) == (0x8946, b"nic0\0")
        asked = ctypes.cast(struct.unpack_from("P", request, 16)[0], ctypes.POINTER(ctypes.c_uint))
        assert asked[0] == 0x25
        asked[1] = flags

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert snapshot.receives_large("nic0") is expected


def test_a_link_that_is_gone_takes_its_addresses_along() -> None:
    told = compared(links(), snapshot.links_and_addresses([]))
    assert [line.split(":")[0] for line in told] == [
        "address nic0 192.0.2.2/24", "address nic0 fe80", "link nic0",
    ]  # fmt: skip
    assert all(line.endswith("is gone") for line in told)
    back = compared(snapshot.links_and_addresses([]), links())
    assert all(": was not there, is " in line for line in back) and len(back) == 3


def test_an_address_is_told_with_all_that_is_set_of_it() -> None:
    (first, second) = NIC["addr_info"]
    broadcast = links(addr_info=[changed(first, broadcast="192.0.2.127"), second])
    assert compared(links(), broadcast) == [
        "address nic0 192.0.2.2/24: broadcast was 192.0.2.255, is 192.0.2.127"
    ]
    limited = [links(addr_info=[changed(first, valid_life_time=s), second]) for s in (60, 59)]
    assert compared(*limited) == []
    assert "lifetime was not set, is limited" in compared(links(), limited[0])[0]
    temporary = changed(second, local="fd00::1234", temporary=True)
    assert compared(links(), links(addr_info=[first, second, temporary])) == []


def test_open_vswitch_s_own_devices_are_left_out() -> None:
    own = changed(NIC, ifname="ovs-netdev")
    assert snapshot.links_and_addresses([own]) == {"link": {}, "address": {}}
    (htb,) = snapshot.shown_qdiscs(QDISCS.splitlines()[1].replace("nic0", "ovs-system"))
    assert snapshot.qdiscs([htb]) == {}


def routes(found: Any) -> snapshot.Facts:
    return {"route": snapshot.routes(found, "IPv4")}


def test_metrics_and_next_hops_of_a_route_are_told_without_their_states() -> None:
    wide = {"dst": "10.61.0.0/16", "dev": "nic0", "flags": ["onlink"], "metrics": [{"mtu": 1300}]}
    ways = [{"gateway": "10.1.0.3", "dev": "nic0", "weight": 1, "flags": ["linkdown"]},
            {"gateway": "10.1.0.4", "dev": "nic1", "weight": 1, "flags": []}]  # fmt: skip
    both = {"dst": "10.62.0.0/16", "flags": [], "nexthops": ways}
    up = {**both, "nexthops": [{**ways[0], "flags": []}, ways[1]]}
    assert compared(routes([wide, both]), routes([wide, up])) == []
    narrow = {**wide, "metrics": [{"mtu": 1280}]}
    assert len(compared(routes([wide, both]), routes([narrow, both]))) == 1
    assert len(compared(routes([wide, both]), routes([wide, {**both, "nexthops": ways[1:]}]))) == 1


def test_a_route_that_lasts_for_a_time_only_is_another_one() -> None:
    """How long it still lasts differs at each look."""
    lasting = {"dst": "2001:db8::/32", "dev": "nic0", "metric": 1024, "expires": 55}
    assert compared(routes([lasting]), routes([{**lasting, "expires": 54}])) == []
    for_good = {key: value for key, value in lasting.items() if key != "expires"}
    assert len(compared(routes([lasting]), routes([for_good]))) == 1


def test_routes_of_all_tables_are_told() -> None:
    default, connected, local = ROUTES
    assert compared(routes(ROUTES), routes([default, connected])) == [
        "route IPv4 table local broadcast 192.0.2.255 dev nic0: was protocol kernel, scope link, "
        "prefsrc 192.0.2.2, is gone"
    ]
    assert compared(
        routes(ROUTES), routes([changed(default, gateway="192.0.2.9"), *ROUTES[1:]])
    ) == ["route IPv4 table main unicast default dev nic0: gateway was 192.0.2.1, is 192.0.2.9"]
    of_ours = {"dst": "10.7.0.0/24", "dev": "pw-nic0", "table": "8000", "protocol": "80"}
    assert len(compared(routes(ROUTES), routes([*ROUTES, of_ours]))) == 1
    down = [changed(default, flags=["linkdown", "dead"]), connected, local]
    assert compared(routes(ROUTES), routes(down)) == []
    assert compared(routes(ROUTES), routes([default, *ROUTES])) != [], "one that is there twice"


def test_rules_are_told_by_priority() -> None:
    def facts(found: Any) -> snapshot.Facts:
        return {"rule": snapshot.rules(found, "IPv4")}

    other = [*RULES[:1], changed(RULES[1], table="100"), *RULES[2:]]
    assert compared(facts(RULES), facts(other)) == [
        "rule IPv4 priority 18000: table was 8000, is 100"
    ]
    foreign = {"priority": 18000, "src": "10.99.0.0", "srclen": 24, "table": "100"}
    assert len(compared(facts(RULES), facts([foreign, *RULES]))) >= 1
    assert compared(facts([foreign, *RULES]), facts([*RULES, foreign])) == []


def test_neighbours_that_somebody_set_are_told() -> None:
    permanent = [{"dst": "10.7.0.9", "dev": "nic0", "lladdr": "02:00:00:00:00:09"}]
    kept = snapshot.neighbours(permanent)
    answered = snapshot.proxied([{"dst": "10.7.0.9", "dev": "nic0", "proxy": None}])
    before = {"permanent neighbour": {**kept, **answered}}
    assert compared(before, {"permanent neighbour": kept}) == [
        "permanent neighbour nic0 10.7.0.9 proxy: was answered, is gone"
    ]


def test_sysctls_are_read_but_for_what_is_no_setting(tmp_path: Path) -> None:
    files = {
        "ipv4/conf/nic0/arp_ignore": "1\n", "ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "netfilter/nf_conntrack_count": "17\n", "ipv4/tcp_fastopen_key": "secret\n",
        "ipv6/conf/nic0/stable_secret": "secret\n", "ipv4/tcp_available_ulp": "mptcp\n",
        "ipv4/conf/ovs-netdev/arp_ignore": "0\n", "ipv4/route/flush": "",
    }  # fmt: skip
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = snapshot.sysctls(tmp_path)
    assert found == {
        "net/ipv4/conf/nic0/arp_ignore": "1", "net/ipv4/tcp_rmem": "4096 131072 6291456",
    }  # fmt: skip
    now = {"sysctl": found | {"net/ipv4/conf/nic0/arp_ignore": "0"}}
    assert compared({"sysctl": found}, now) == ["sysctl net/ipv4/conf/nic0/arp_ignore: was 1, is 0"]


def test_qdiscs_classes_and_filters_are_told() -> None:
    def facts(
        qdiscs: str = QDISCS, classes: str = CLASSES, filters: str = FILTERS
    ) -> snapshot.Facts:
        return {
            "qdisc": snapshot.qdiscs(snapshot.shown_qdiscs(qdiscs)),
            "class": snapshot.classes("nic0", classes),
            "filter": snapshot.filters([("nic0", "parent 1:", filters)]),
        }  # fmt: skip

    (told, _) = compared(facts(), facts(QDISCS.splitlines()[0]))
    assert told.startswith("qdisc nic0 root: was kind htb")
    counted = QDISCS.replace("stat 17", "stat 99").replace("8001:", "8009:")
    assert compared(facts(), facts(counted.replace("8002:1", "800a:1"))) == []
    (told,) = compared(facts(), facts(QDISCS.replace("default 0x1", "default 0x2")))
    assert "default 0x1" in told and "default 0x2" in told
    slower = CLASSES.replace("rate 10Mbit", "rate 1Mbit")
    (told,) = compared(facts(), facts(classes=slower))
    assert told.startswith("class nic0 htb 1:3: was parent 1:fffe") and "is parent" in told
    numbered = FILTERS.replace("800::801", "800::900").replace("order 2049", "order 2304")
    assert compared(facts(), facts(filters=numbered)) == []
    (told,) = compared(facts(), facts(filters=FILTERS.partition("filter parent 1: protocol ip pref "
                              "20481 u32 chain 0 fh 800::801")[0]))  # fmt: skip
    assert "match 0a070003/ffffffff at 16" in told and told.endswith("is gone")


def test_qdiscs_that_tc_cannot_print_as_json_are_told() -> None:
    found = snapshot.qdiscs(snapshot.shown_qdiscs(MQPRIO))
    assert found == {
        "nic2 root": {"kind": "mqprio", "options": "tc 2 map 0 0 1 1 queues:(0:1) (2:3)"},
        "nic3 root": {"kind": "hfsc", "options": "default 1", "handle": "5:"},
        "nic3 parent ffff:fff1": {"kind": "ingress", "options": "", "handle": "ffff:"},
    }


def tc_of_classes(filter_at: str) -> Callable[..., str]:
    """Answers as tc does, of a NIC with an HTB, on one of whose classes is a filter."""
    shown = {
        "tc -details qdisc show": QDISCS,
        "tc -details class show dev nic0": CLASSES,
        **{f"class show dev nic0 classid {line.split()[2]}": f"{line}\n"
           for line in CLASSES.splitlines()},
        f"filter show dev nic0 parent {filter_at}": CLASS_FILTER,
        f"tc filter show dev nic0 parent {filter_at}": CLASS_FILTER,
    }  # fmt: skip

    def run(*words: str, stdin: str = "") -> str:
        if words[0] == "ovs-vsctl":
            raise FileNotFoundError
        if words == ("tc", "-batch", "-"):
            return "".join(shown.get(line, "") for line in stdin.splitlines()).strip()
        return shown.get(" ".join(words), "" if words[0] == "tc" else "[]")

    return run


def test_filters_on_classes_are_told_with_their_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_SYSCTLS", tmp_path)

    def taken(filter_at: str) -> dict[str, Any]:
        monkeypatch.setattr(snapshot, "_run", tc_of_classes(filter_at))
        return snapshot.take()

    (told,) = differences(taken("nowhere"), taken("1:fffe"))
    assert told.startswith(
        "filter nic0 parent 1:fffe filter protocol ip pref 10 u32 chain 0 flowid"
    )
    assert told.endswith("match 0a420003/ffffffff at 16: was not there, is 1")
    gone, come = differences(taken("1:1"), taken("1:3"))
    assert "nic0 parent 1:1 " in gone and gone.endswith("is gone")
    assert "nic0 parent 1:3 " in come and "was not there" in come


def test_a_filter_is_told_apart_by_the_qdisc_that_it_is_on() -> None:
    def facts(place: str) -> snapshot.Facts:
        return {"filter": snapshot.filters([("nic0", place, CLASS_FILTER)])}

    assert len(compared(facts("parent 1:"), facts("parent 10:"))) == 2
    assert compared(facts("parent 8001:"), facts("parent 8002:")) == []


def switch(**replaced: str) -> snapshot.Facts:
    texts = tables() | replaced
    return snapshot.database({name: snapshot.rows(text) for name, text in texts.items()})


def test_the_switch_s_rows_are_told_by_what_they_belong_to() -> None:
    facts = switch()
    assert facts["bridge"] == {
        "pw-nic0": {
            "datapath_type": "netdev", "ports": ["nic0", "pw-nic0"],
            "external_ids": {"placewire": "test-plan"},
        },
    }  # fmt: skip
    assert facts["port"]["nic0"] == {
        "bridge": "pw-nic0", "interfaces": "nic0", "tag": 0,
        "external_ids": {"placewire": "test-plan"},
    }  # fmt: skip
    assert facts["QoS"].keys() == {"port nic0"}
    assert facts["queue"].keys() == {"port nic0 queue 2", "of no QoS, 1"}


def test_rows_that_were_made_anew_alike_do_not_differ() -> None:
    assert compared(switch(), switch(**tables("hgfedcba"))) == []


def test_a_queue_s_rate_and_a_row_that_nothing_uses_are_told() -> None:
    rate = tables()["Queue"].replace("10000000", "2000000")
    (told,) = compared(switch(), switch(Queue=rate))
    assert told.startswith("queue port nic0 queue 2: other_config was max-rate 10000000, is ")
    unused = tables()["Port"].replace('["uuid", "f"]', '["set", []]')
    told_all = compared(switch(), switch(Port=unused))
    assert any(line.startswith("QoS of no port, 1: was not there") for line in told_all)
    assert any(line.startswith("QoS port nic0: was ") for line in told_all)


def test_flows_are_told_with_their_cookie_and_actions() -> None:
    def facts(text: str) -> snapshot.Facts:
        return {"flow": snapshot.flows("pw-nic0", text)}

    assert facts(FLOWS)["flow"]["pw-nic0 priority=99,tcp,tp_dst=9"] == {
        "cookie": "0x7", "actions": "drop",
    }  # fmt: skip
    assert len(facts(FLOWS)["flow"]) == 3
    assert compared(facts(FLOWS), facts(FLOWS.replace("set_queue:2,", ""))) == [
        "flow pw-nic0 priority=20480,ip,in_port=LOCAL,nw_dst=10.7.0.2: actions was set_queue:2,"
        "NORMAL, is NORMAL"
    ]
    theirs = "\n".join(line for line in FLOWS.splitlines() if "0x7" not in line)
    assert compared(facts(FLOWS), facts(theirs)) == [
        "flow pw-nic0 priority=99,tcp,tp_dst=9: was cookie 0x7, actions drop, is gone"
    ]


def test_the_program_imports_the_standard_library_alone() -> None:
    tree = ast.parse(SOURCE.read_text())
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert modules <= set(sys.stdlib_module_names), modules


def test_its_text_alone_is_a_program() -> None:
    done = subprocess.run(
        ["python3", "-I", "-", "--help"], input=SOURCE.read_bytes(), capture_output=True
    )
    assert done.returncode == 0 and b"--run-dir" in done.stdout


def with_tools(folder: Path, ip: bytes) -> dict[str, str]:
    """An environment in which `ip address` prints these bytes, and the other tools nothing."""
    (folder / "printed").write_bytes(ip)
    for name in ("ip", "tc", "ovs-vsctl", "ovs-ofctl"):
        script = f'case "$*" in *address*) cat {folder}/printed;; *vsctl*) ;; *) echo "[]";; esac'
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "ovs-vsctl").write_text("""#!/bin/sh\necho '{"headings": ["_uuid"], "data": []}'\n""")
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_name_of_any_bytes_is_shown_and_stops_nothing(tmp_path: Path) -> None:
    named = (
        b'[{"ifname":"e\xff","flags":["UP"],"mtu":1500,"ifalias":"bob\\\'s \x01","addr_info":['
        b'{"local":"10.7.0.1","prefixlen":24,"label":"a\x01\xffb"}]}]'
    )
    done = subprocess.run(
        [sys.executable, "-I", str(SOURCE)], capture_output=True, env=with_tools(tmp_path, named)
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)["facts"]
    assert facts["address"]["e\\xff 10.7.0.1/24"]["label"] == "a\x01\\xffb"
    json.dumps(facts, ensure_ascii=False).encode()


@pytest.mark.parametrize("printed", [b"{", b"[" * 100_000])
def test_what_is_no_json_is_an_error_and_no_traceback(tmp_path: Path, printed: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(SOURCE)], capture_output=True, text=True,
        env=with_tools(tmp_path, printed),
    )  # fmt: skip
    assert done.returncode == snapshot.EXIT_UNREADABLE and "printed no JSON" in done.stderr
    with pytest.raises(snapshot.UnreadableError, match="is no snapshot"):
        taken_by(["printf", r"\377{"])


def test_what_cannot_be_read_is_an_error_and_no_gap(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """There is no Open vSwitch at the folder of its sockets."""
    done = subprocess.run(
        [sys.executable, "-I", str(SOURCE), "--run-dir", str(tmp_path)], capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == snapshot.EXIT_UNREADABLE and done.stdout == ""
    assert "ovs-vsctl" in done.stderr and "db.sock" in done.stderr
