"""Takes a snapshot of this server's network, as the system's own tools show it.

The file stands alone: it imports the standard library only, and nothing of Placewire, so that it
shares no mistake with the agent that it judges. `python3 -I -` runs its text on any server.

A snapshot is {"version": 1, "facts": {what: {where: value}}}: for example facts["address"]["nic0
10.7.0.1/24"] holds that address's scope, label and flags. What changes by itself, or is not a
setting, is left out; LEFT_OUT has the reasons.
"""

from __future__ import annotations

import argparse
import array
import fcntl
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = 1
EXIT_UNREADABLE = 2
LEFT_OUT: Mapping[str, str] = {
    "counters and statistics": "they count packets",
    "ages, timers and remaining lifetimes": "they run by themselves",
    "indexes of interfaces, ports, rows (ifindex, ofport, _uuid)": "a thing made anew has others",
    "handles of qdiscs and of u32 filters that the kernel chose": "they follow the order of making",
    "carrier and operational state": "they are the other end's of the cable",
    "neighbours and learned MACs, but for permanent neighbours": "they are caches",
    "temporary IPv6 addresses": "the kernel renews them",
    "sysctls that count, and sysctls that list loaded modules": "they are no settings",
    "sysctls that are keys": "they are secrets",
    "net.core.wmem_default": "it is the whole machine's, and labs on it raise it for a moment",
    "ovs-netdev and ovs-system": "they are Open vSwitch's own devices and come and go with it",
}
_TIMEOUT_SECONDS = 60
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.2
_FOREVER = 0xFFFFFFFF
_OWN_DEVICES = ("ovs-netdev", "ovs-system")
_CARRIER_FLAGS = {"LOWER_UP", "RUNNING", "NO-CARRIER", "DORMANT", "M-DOWN", "ECHO"}
_ROUTE_STATES = {"linkdown", "dead", "offload", "rt_offload", "offload_failed", "trap", "pervasive"}
_VOLATILE_LINK_DETAIL = re.compile(
    r"timer|age|active|root_|bridge_id|designated|topology|port_i|_no"
)
_SYSCTLS = Path("/proc/sys/net")
_NO_SETTING = re.compile(
    r"netfilter/nf_conntrack_count|.*/route/flush|(?:ipv4|mptcp)/(?:tcp_)?available_\w+"
    r"|core/wmem_default|core/netdev_rss_key|ipv4/tcp_fastopen_key|ipv6/conf/.*/stable_secret"
)
_QDISC = re.compile(r"qdisc (\S+) (\S+) (?:offloaded )?dev (\S+) (root|parent \S+)?(.*)", re.DOTALL)
# The lowest handle of a qdisc that the kernel itself chooses.
_FIRST_CHOSEN_HANDLE = 0x8000
# Whatever versions a bridge allows.
_OPENFLOW = ",".join(f"OpenFlow1{minor}" for minor in range(6))
# The columns that are settings; ovs-vswitchd writes the others.
_COLUMNS: Mapping[str, Sequence[str]] = {
    "Open_vSwitch": ("other_config", "external_ids"),
    "Bridge": (
        "name", "datapath_type", "ports", "fail_mode", "protocols", "controller", "mirrors",
        "flow_tables", "stp_enable", "rstp_enable", "mcast_snooping_enable", "netflow", "sflow",
        "ipfix", "other_config", "external_ids",
    ),
    "Port": (
        "name", "interfaces", "qos", "tag", "trunks", "vlan_mode", "bond_mode", "lacp", "mac",
        "fake_bridge", "protected", "other_config", "external_ids",
    ),
    "Interface": (
        "name", "type", "options", "mac", "mtu_request", "ofport_request",
        "ingress_policing_rate", "ingress_policing_burst", "other_config", "external_ids",
    ),
    "QoS": ("type", "queues", "other_config", "external_ids"),
    "Queue": ("dscp", "other_config", "external_ids"),
    "Controller": ("target", "other_config", "external_ids"),
}  # fmt: skip

# linux/ethtool.h
_SIOCETHTOOL, _GET_FLAGS, _LARGE_RECEIVE_OFFLOAD = 0x8946, 0x25, 1 << 15

Facts = dict[str, dict[str, Any]]


class UnreadableError(Exception):
    """Part of the server could not be read. The message: which command, and what it said."""


def take() -> dict[str, Any]:
    """The snapshot of the network namespace of this process. Raises UnreadableError.

    Open vSwitch's sockets are looked for in the environment variable OVS_RUNDIR, or else where
    its package has them. An interface or a bridge may go while it is read: then all is read again.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _taken()
        except UnreadableError:
            time.sleep(_PAUSE_SECONDS)
    return _taken()


def _taken() -> dict[str, Any]:
    links = _parsed(_run("ip", "-json", "-details", "address", "show"))
    facts: Facts = {
        **links_and_addresses(links),
        "route": {
            **routes(_parsed(_ip("-4", "route", "show", "table", "all")), "IPv4"),
            **routes(_parsed(_ip("-6", "route", "show", "table", "all")), "IPv6"),
        },
        "rule": {
            **rules(_parsed(_ip("-4", "rule", "show")), "IPv4"),
            **rules(_parsed(_ip("-6", "rule", "show")), "IPv6"),
        },
        "permanent neighbour": {
            **neighbours(_parsed(_ip("neighbour", "show", "nud", "permanent"))),
            **proxied(_parsed(_ip("neighbour", "show", "proxy"))),
        },
        "sysctl": sysctls(_SYSCTLS),
    }
    for name, link in facts["link"].items():
        if receives_large(name):
            link["large receive offload"] = True
    found = shown_qdiscs(_run("tc", "-details", "qdisc", "show"))
    facts["qdisc"] = qdiscs(found)
    shown = {
        name: _run("tc", "-details", "class", "show", "dev", name)
        for name in sorted({qdisc["dev"] for qdisc in found if _has_classes(qdisc)})
    }
    facts["class"] = _merged(classes(name, text) for name, text in shown.items())
    facts["filter"] = filters([*_filters_of_qdiscs(found), *_filters_of_classes(shown)])
    facts.update(_open_vswitch())
    return {"version": VERSION, "facts": facts}


# -- addresses, links, routes ------------------------------------------------------------------


def links_and_addresses(links: Sequence[Mapping[str, Any]]) -> Facts:
    """links: of `ip -json -details address show`."""
    found: dict[str, Any] = {}
    addresses: dict[str, Any] = {}
    for link in links:
        name = link["ifname"]
        if name in _OWN_DEVICES:
            continue
        found[name] = _link(link)
        for address in link.get("addr_info", []):
            if address and not address.get("temporary"):
                addresses[_address_key(name, address)] = _address(address)
    return {"link": found, "address": addresses}


def _link(link: Mapping[str, Any]) -> dict[str, Any]:
    flags = set(link["flags"])
    details = link.get("linkinfo", {})
    data = details.get("info_data", {})
    keep = {
        "MAC": link.get("address"),
        "MTU": link["mtu"],
        "up": "UP" in flags,
        "flags": sorted(flags - _CARRIER_FLAGS - {"UP"}),
        "master": link.get("master"),
        "lower link": link.get("link"),
        "alternative names": sorted(link.get("altnames", [])),
        "kind": details.get("info_kind"),
        "group": link.get("group"),
        "transmit queue length": link.get("txqlen"),
        **{f"{k}": v for k, v in data.items() if not _VOLATILE_LINK_DETAIL.search(k)},
    }
    return {key: value for key, value in keep.items() if value not in (None, [])}


def receives_large(interface: str) -> bool:
    """Whether its large receive offload is on. The kernel is asked, because a server may have no
    `ethtool` yet when its first snapshot is taken."""
    value = array.array("I", [_GET_FLAGS, 0])
    request = struct.pack("16sP", interface.encode(), value.buffer_info()[0]).ljust(40, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            fcntl.ioctl(asking, _SIOCETHTOOL, request)
        except OSError:
            return False  # It has no offloads, or has just gone.
    return bool(value[1] & _LARGE_RECEIVE_OFFLOAD)


def _address_key(name: str, address: Mapping[str, Any]) -> str:
    peer = f" peer {address['address']}" if "address" in address else ""
    return f"{name} {address['local']}{peer}/{address['prefixlen']}"


def _address(address: Mapping[str, Any]) -> dict[str, Any]:
    named = {"local", "address", "prefixlen", "tentative", "optimistic", "dadfailed"}
    lifetimes = {"valid_life_time", "preferred_life_time"}
    value = {k: v for k, v in address.items() if k not in named | lifetimes}
    if any(address.get(lifetime, _FOREVER) != _FOREVER for lifetime in lifetimes):
        value["lifetime"] = "limited"
    return value


def routes(found: Sequence[Mapping[str, Any]], family: str) -> dict[str, Any]:
    """found: of `ip -json -details route show table all`."""
    pairs = []
    for route in found:
        if route.get("dev") in _OWN_DEVICES:
            continue
        dropped = {"expires", "cache", "used", "age", "users", "error"}
        named = {"dst", "table", "type", "metric", "tos", "dev"}
        value = {k: _without_states(v) for k, v in route.items() if k not in dropped | named}
        if "expires" in route:
            value["lifetime"] = "limited"
        words = [family, f"table {route.get('table', 'main')}", route.get("type", "unicast")]
        words += [
            route["dst"],
            *(f"{k} {route[k]}" for k in ("dev", "tos", "metric") if k in route),
        ]
        pairs.append((" ".join(words), {k: v for k, v in value.items() if v != []}))
    return _numbered(pairs)


def _without_states(value: Any) -> Any:
    """Leaves the states of a route out of its flags, and of those of its next hops."""
    if isinstance(value, list):
        kept = (one for one in value if not (isinstance(one, str) and one in _ROUTE_STATES))
        return [_without_states(one) for one in kept]
    if isinstance(value, dict):
        return {k: _without_states(v) for k, v in value.items()}
    return value


def rules(found: Sequence[Mapping[str, Any]], family: str) -> dict[str, Any]:
    """found: of `ip -json -details rule show`. Rules of one priority are numbered."""
    return _numbered(
        (
            f"{family} priority {rule['priority']}",
            {k: v for k, v in rule.items() if k != "priority"},
        )
        for rule in found
    )


def neighbours(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """found: of `ip -json neighbour show nud permanent`."""
    return {f"{one['dev']} {one['dst']}": one.get("lladdr", "") for one in found if "dev" in one}


def proxied(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """found: of `ip -json neighbour show proxy`: those for which this server answers."""
    return {f"{one['dev']} {one['dst']} proxy": "answered" for one in found if "dev" in one}


def sysctls(root: Path) -> dict[str, Any]:
    """Every readable setting below root, by its path, which `sysctl` takes as well."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            key = path.relative_to(root).as_posix()
            if _NO_SETTING.fullmatch(key) or any(f"/{d}/" in key for d in _OWN_DEVICES):
                continue
            try:
                text = path.read_text(errors="replace")
            except FileNotFoundError:
                continue  # Its interface has just gone.
            except OSError as error:
                text = f"cannot be read: {error.strerror}"
            key = os.fsencode(key).decode(errors="backslashreplace")
            found[f"net/{key}"] = " ".join(text.split())
    return found


# -- traffic control ---------------------------------------------------------------------------


def shown_qdiscs(text: str) -> list[dict[str, str]]:
    """text: of `tc -details qdisc show`: tc's JSON is none where there is an hfsc or a multiq. A
    qdisc's options may go on in further lines."""
    found = []
    for block in re.split(r"(?m)^(?=qdisc )", text):
        if shown := _QDISC.match(block):
            options = re.sub(r"\brefcnt \d+|\b\w+_stat \d+|\boffloaded\b|-{3,}", "", shown[5])
            kind, handle, dev, place = shown.groups()[:4]
            one = {"kind": kind, "handle": handle, "dev": dev, "place": place or "of a class"}
            found.append({**one, "options": " ".join(options.split())})
    return found


def qdiscs(found: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """found: by `shown_qdiscs`."""
    pairs = []
    for qdisc in found:
        if qdisc["dev"] in _OWN_DEVICES:
            continue
        value = {"kind": qdisc["kind"], "options": qdisc["options"]}
        if (handle := qdisc["handle"]) != "0:" and not _is_chosen(handle):
            value["handle"] = handle
        pairs.append((f"{qdisc['dev']} {_place(qdisc['place'])}", value))
    return _numbered(pairs)


def classes(device: str, text: str) -> dict[str, Any]:
    """text: of `tc -details class show`: tc's JSON has not every figure in every version."""
    pairs = []
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["class"] and not _is_chosen(words[2]):
            pairs.append((f"{device} {words[1]} {words[2]}", " ".join(words[3:])))
    return _numbered(pairs)


def filters(found: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """found: (device, place, what `tc filter show` prints there): tc's JSON has not the whole of a
    u32 filter in every version. A filter is its own key, with how often it is there."""
    keys: Counter[str] = Counter()
    for device, place, text in found:
        for block in re.split(r"(?m)^(?=filter )", text):
            lines = "; ".join(" ".join(line.split()) for line in block.splitlines() if line.strip())
            whole = re.sub(r" fh [0-9a-f]+:\S*| order \d+| key ht \S+ bkt \S+", "", lines)
            keys.update([f"{device} {_place(place)} {whole}"] if whole else [])
    return dict(keys)


def _has_classes(qdisc: Mapping[str, str]) -> bool:
    return qdisc["handle"] != "0:" and qdisc["dev"] not in _OWN_DEVICES


def _filters_of_qdiscs(found: Sequence[Mapping[str, str]]) -> Iterator[tuple[str, str, str]]:
    """(device, place, what `tc filter show` prints) of each qdisc."""
    receiving = {"ingress": ["ingress"], "clsact": ["ingress", "egress"]}
    for qdisc in filter(_has_classes, found):
        device = qdisc["dev"]
        for place in receiving.get(qdisc["kind"], [f"parent {qdisc['handle']}"]):
            yield device, place, _run("tc", "filter", "show", "dev", device, *place.split())


def _filters_of_classes(shown: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """The same of each class. shown: by device, what `tc class show` printed. One process asks for
    all of a device, as there may be hundreds: for a class, and then for the filters on it."""
    for device, text in shown.items():
        names = [line.split()[2] for line in text.splitlines() if line.startswith("class ")]
        asked = "".join(
            f"class show dev {device} classid {name}\nfilter show dev {device} parent {name}\n"
            for name in names
        )
        printed = _run("tc", "-batch", "-", stdin=asked) if names else ""
        for part in re.split(r"(?m)^class \S+ ", printed)[1:]:
            first, _, on_it = part.partition("\n")
            yield device, f"parent {first.split()[0]}", on_it


def _place(place: str) -> str:
    """The place of a qdisc or a filter, without a number that the kernel chose."""
    chosen = _is_chosen(place.rsplit(maxsplit=1)[-1])
    return "parent that the kernel numbered" if chosen else place


def _is_chosen(handle: str) -> bool:
    """Whether the kernel chose this handle (major:minor) itself."""
    major = handle.partition(":")[0]
    if not re.fullmatch("[0-9a-f]+", major):
        return False
    return _FIRST_CHOSEN_HANDLE <= int(major, 16) < 0xFFF0  # ffff: and fff1: are ingress and such


# -- Open vSwitch ------------------------------------------------------------------------------


def _open_vswitch() -> Facts:
    try:
        tables = {
            table: rows(_vsctl(f"--columns=_uuid,{','.join(columns)}", "list", table))
            for table, columns in _COLUMNS.items()
        }
    except FileNotFoundError:
        return {"Open vSwitch": {"ovs-vsctl": "not installed"}}
    facts = database(tables)
    facts["flow"] = _merged(
        flows(name, _run("ovs-ofctl", "-O", _OPENFLOW, "--no-stats", "--names", "dump-flows", name))
        for name in sorted(facts["bridge"])
    )
    return facts


def rows(text: str) -> dict[str, dict[str, Any]]:
    """The rows that `ovs-vsctl --format=json list` printed, by _uuid."""
    table = _parsed(text)
    found = {}
    for cells in table["data"]:
        row = {name: _cell(cells[column]) for column, name in enumerate(table["headings"])}
        found[str(row.pop("_uuid"))] = row
    return found


def _cell(cell: Any) -> Any:
    """A cell without OVSDB's notation: a set is a sorted list, a map a dictionary."""
    if not isinstance(cell, list):
        return cell
    kind, content = cell
    if kind == "set":
        return sorted((_cell(one) for one in content), key=str)
    if kind == "map":
        return {str(_cell(key)): _cell(value) for key, value in sorted(content, key=str)}
    return content  # uuid, named-uuid


def database(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Facts:
    """Open vSwitch's rows, named by what they belong to; those that nothing uses count, too."""
    facts: Facts = {k: {} for k in ("Open vSwitch", "bridge", "port", "interface", "QoS", "queue")}
    for row in tables["Open_vSwitch"].values():
        facts["Open vSwitch"]["settings"] = _set(row)
    names = {
        number: str(row.get("name", row.get("target", "")))
        for table in ("Port", "Interface", "Controller")
        for number, row in tables[table].items()
    }
    bridge_of = {n: row["name"] for row in tables["Bridge"].values() for n in _listed(row["ports"])}
    for row in tables["Bridge"].values():
        facts["bridge"][row["name"]] = _set(row, names)
    used_qos, used_queues = set(), set()
    for number, row in tables["Port"].items():
        value = {"bridge": bridge_of.get(number, "none"), **_set(row, names)}
        for qos in _listed(value.pop("qos", [])):
            used_qos.add(qos)
            used_queues |= _put_qos(facts, f"port {row['name']}", tables, qos)
        facts["port"][row["name"]] = value
    for row in tables["Interface"].values():
        facts["interface"][row["name"]] = _set(row)
    for place, number in _unused(tables["QoS"], used_qos, "no port"):
        used_queues |= _put_qos(facts, place, tables, number)
    for place, number in _unused(tables["Queue"], used_queues, "no QoS"):
        facts["queue"][place] = _set(tables["Queue"][number])
    return facts


def _put_qos(
    facts: Facts, place: str, tables: Mapping[str, Mapping[str, Mapping[str, Any]]], number: str
) -> set[str]:
    """Adds a QoS and its queues; returns the numbers of the queues."""
    row = tables["QoS"].get(number)
    if row is None:
        return set()
    value = _set(row)
    queues = value.pop("queues", {})
    facts["QoS"][place] = value
    for identifier, queue in queues.items():
        facts["queue"][f"{place} queue {identifier}"] = _set(tables["Queue"].get(queue, {}))
    return set(queues.values())


def _unused(
    table: Mapping[str, Mapping[str, Any]], used: Iterable[str], place: str
) -> list[tuple[str, str]]:
    """Places and numbers of the rows that nothing uses, in the order of their content."""
    left = sorted((n for n in table if n not in used), key=lambda n: json.dumps(_set(table[n])))
    return [(f"of {place}, {k}", number) for k, number in enumerate(left, start=1)]


def _set(row: Mapping[str, Any], names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What is set of a row; references to rows become their names, or the word `set`."""

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return sorted(str(named(one)) for one in value)
        return (names or {}).get(value, value) if isinstance(value, str) else value

    is_set = {k: v for k, v in row.items() if k != "name" and (v or type(v) is int)}
    found = {k: named(v) for k, v in is_set.items()}
    for reference in ("mirrors", "flow_tables", "netflow", "sflow", "ipfix"):
        if reference in found:
            found[reference] = "set"
    return found


def _listed(value: Any) -> list[str]:
    """A reference, or a set of references, as OVSDB prints it."""
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def flows(bridge: str, text: str) -> dict[str, Any]:
    """text: of `ovs-ofctl --no-stats dump-flows`."""
    pairs = []
    for line in text.splitlines():
        # ovs-ofctl prints no cookie that is 0, and a flag that flows of OpenFlow 1.2 have.
        flow = re.fullmatch(r"\s*(?:cookie=(\S+?), )?(?:reset_counts )?(.*?) ?actions=(.*)", line)
        if flow is not None:
            match = flow[2].strip().rstrip(",") or "every packet"
            pairs.append((f"{bridge} {match}", {"cookie": flow[1] or "0x0", "actions": flow[3]}))
    return _numbered(pairs)


# -- helpers -----------------------------------------------------------------------------------


def _ip(*words: str) -> str:
    return _run("ip", "-json", "-details", *words) or "[]"


def _vsctl(*words: str) -> str:
    return _run("ovs-vsctl", "--timeout=30", "--format=json", *words)


def _run(*words: str, stdin: str = "") -> str:
    """Raises FileNotFoundError where the program is not there, else UnreadableError."""
    try:
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            text=True,
            errors="backslashreplace",
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UnreadableError(f"`{' '.join(words)}` gave no answer in {error.timeout} s") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().replace("\n", "; ")
        raise UnreadableError(f"`{' '.join(words)}`: {said or f'exit {done.returncode}'}")
    return done.stdout.strip()


def _parsed(text: str) -> Any:
    """A tool's JSON. A name of any byte is in it raw, an apostrophe perhaps as `\\'`; where a byte
    is no UTF-8, `\\xff` stands for it. Raises UnreadableError."""
    escaped = re.sub(r"\\(.)", _json_escape, text)
    try:
        return json.loads(escaped, strict=False)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"a tool printed no JSON ({error}): {text[:200]!r}") from error


def _json_escape(escape: re.Match[str]) -> str:
    kept = {"'": "'", "x": r"\\x"}
    return kept.get(escape[1], escape[0])


def _numbered(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """By key; where a key comes again, the values are numbered in the order of their content."""
    found: dict[str, Any] = {}
    for key, value in sorted(
        pairs, key=lambda pair: (pair[0], json.dumps(pair[1], sort_keys=True))
    ):
        name, count = key, 1
        while name in found:
            count += 1
            name = f"{key} ({count})"
        found[name] = value
    return found


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def main(words: Sequence[str] | None = None) -> int:
    """Prints the snapshot of this server as JSON."""
    parser = argparse.ArgumentParser(description="Print a snapshot of this server's network.")
    parser.add_argument("--run-dir", help="the folder of Open vSwitch's sockets")
    arguments = parser.parse_args(words)
    if arguments.run_dir:
        os.environ["OVS_RUNDIR"] = arguments.run_dir
    try:
        taken = take()
    except (UnreadableError, FileNotFoundError) as error:
        print(
            f"the network cannot be read: {error} (it takes a running Open vSwitch, and root or a "
            "user of the group openvswitch)",
            file=sys.stderr,
        )
        return EXIT_UNREADABLE
    print(json.dumps(taken, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
