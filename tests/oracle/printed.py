"""Texts that the system's tools print: iproute2 6.1, Open vSwitch 3.1."""

from __future__ import annotations

import copy
import json
from typing import Any

NIC: Any = json.loads("""
{"ifindex": 4, "ifname": "nic0", "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
 "mtu": 1400, "qdisc": "pfifo_fast", "operstate": "UP", "group": "default", "txqlen": 1000,
 "link_type": "ether", "address": "02:fc:00:00:00:01", "broadcast": "ff:ff:ff:ff:ff:ff",
 "promiscuity": 0, "allmulti": 0, "min_mtu": 68, "max_mtu": 65535, "num_tx_queues": 1,
 "num_rx_queues": 1, "gso_max_size": 65536, "gso_max_segs": 65535, "tso_max_size": 65536,
 "tso_max_segs": 65535, "gro_max_size": 65536, "parentbus": "virtio", "parentdev": "virtio2",
 "addr_info": [
  {"family": "inet", "local": "192.0.2.2", "prefixlen": 24, "broadcast": "192.0.2.255",
   "scope": "global", "label": "nic0", "valid_life_time": 4294967295,
   "preferred_life_time": 4294967295},
  {"family": "inet6", "local": "fe80::fc:ff:fe00:1", "prefixlen": 64, "scope": "link",
   "valid_life_time": 4294967295, "preferred_life_time": 4294967295}]}
""")
ROUTES: Any = json.loads("""
[{"type": "unicast", "dst": "default", "gateway": "192.0.2.1", "dev": "nic0", "protocol": "boot",
  "scope": "global", "flags": []},
 {"type": "unicast", "dst": "192.0.2.0/24", "dev": "nic0", "protocol": "kernel", "scope": "link",
  "prefsrc": "192.0.2.2", "flags": []},
 {"type": "broadcast", "dst": "192.0.2.255", "dev": "nic0", "table": "local",
  "protocol": "kernel", "scope": "link", "prefsrc": "192.0.2.2", "flags": []}]
""")
RULES: Any = json.loads("""
[{"priority": 0, "src": "all", "table": "local", "protocol": "kernel"},
 {"priority": 18000, "src": "10.7.0.1", "table": "8000", "protocol": "80"},
 {"priority": 32766, "src": "all", "table": "main", "protocol": "kernel"}]
""")
QDISCS = """\
qdisc noqueue 0: dev lo root refcnt 2\x20
qdisc htb 1: dev nic0 root refcnt 2 r2q 10 default 0x1 direct_packets_stat 17 direct_qlen 1000
qdisc fq_codel 8001: dev nic1 parent 8002:1 limit 10240p flows 1024 quantum 1514
"""
MQPRIO = """\
qdisc mqprio 8003: dev nic2 root tc 2 map 0 0 1 1
             queues:(0:1) (2:3)\x20
qdisc hfsc 5: dev nic3 root refcnt 2 default 1\x20
qdisc ingress ffff: dev nic3 parent ffff:fff1 ----------------\x20
"""
CLASSES = """\
class htb 1:fffe root rate 50Mbit ceil 50Mbit burst 15000b/8 mpu 0b cburst 15000b/8 mpu 0b level 7
class htb 1:1 parent 1:fffe prio 0 quantum 6250 rate 500Kbit ceil 50Mbit burst 15000b/8 mpu 0b
class htb 1:3 parent 1:fffe prio 0 quantum 125000 rate 10Mbit ceil 10Mbit burst 15000b/8 mpu 0b
"""
FILTERS = """\
filter parent 1: protocol ip pref 20481 u32 chain 0
filter parent 1: protocol ip pref 20481 u32 chain 0 fh 800: ht divisor 1
filter parent 1: protocol ip pref 20481 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 \
flowid 1:3 not_in_hw
  match 0a070002/ffffffff at 16
filter parent 1: protocol ip pref 20481 u32 chain 0 fh 800::801 order 2049 key ht 800 bkt 0 \
flowid 1:4 not_in_hw
  match 0a070003/ffffffff at 16
"""
# Where the place is asked for by name, tc does not print it.
CLASS_FILTER = """\
filter protocol ip pref 10 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 flowid 1:3 not_in_hw
  match 0a420003/ffffffff at 16
"""
FLOWS = """\
 cookie=0x5057000000000000, priority=20480,ip,in_port=LOCAL,nw_dst=10.7.0.2 actions=set_queue:2,\
NORMAL
 cookie=0x7, priority=99,tcp,tp_dst=9 actions=drop
 cookie=0x0, priority=0 actions=NORMAL
"""


def table(**columns: list[Any]) -> str:
    """A table as `ovs-vsctl --format=json list` prints it."""
    data = [list(cells) for cells in zip(*columns.values(), strict=True)]
    return json.dumps({"data": data, "headings": list(columns)})


def tables(uuids: str = "abcdefgh") -> dict[str, str]:
    """A bridge of one NIC, whose port has a QoS with a queue; and a queue that nothing uses."""
    bridge, port, interface, own, own_interface, qos, queue, stray = (["uuid", u] for u in uuids)
    ours = ["map", [["placewire", "test-plan"]]]
    none: Any = ["set", []]
    return {
        "Open_vSwitch": table(
            _uuid=[["uuid", "root"]], other_config=[["map", []]],
            external_ids=[["map", [["system-id", "s1"]]]],
        ),
        "Bridge": table(
            _uuid=[bridge], name=["pw-nic0"], datapath_type=["netdev"],
            ports=[["set", [port, own]]], fail_mode=[none], controller=[none],
            stp_enable=[False], external_ids=[ours],
        ),
        "Port": table(
            _uuid=[port, own], name=["nic0", "pw-nic0"], interfaces=[interface, own_interface],
            qos=[qos, none], tag=[0, none], external_ids=[ours, ["map", []]],
        ),
        "Interface": table(
            _uuid=[interface, own_interface], name=["nic0", "pw-nic0"], type=["", "internal"],
            mtu_request=[none, 1500],
        ),
        "QoS": table(
            _uuid=[qos], type=["linux-htb"], queues=[["map", [[2, queue]]]],
            other_config=[["map", [["max-rate", "50000000"]]]], external_ids=[ours],
        ),
        "Queue": table(
            _uuid=[queue, stray], dscp=[none, none],
            other_config=[["map", [["max-rate", "10000000"]]], ["map", [["max-rate", "7"]]]],
            external_ids=[ours, ours],
        ),
        "Controller": table(_uuid=[], target=[]),
    }  # fmt: skip


def changed(printed: Any, **changes: Any) -> Any:
    return {**copy.deepcopy(printed), **changes}
