"""Finds other programs and settings that interfere with what Placewire needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from shlex import quote
from typing import NamedTuple

from placewire.agent.contract.diagnosis import Finding
from placewire.agent.contract.entries import TABLES, bridge_name
from placewire.agent.contract.state import ForeignEntry
from placewire.agent.doctor.facts import Facts
from placewire.agent.reconcile.command_words import quoted
from placewire.agent.reconcile.foreign_kinds import INTERFACE_RULES
from placewire.agent.reconcile.interface_rules import (
    bridges_over,
    command_for_bridges,
    rules_naming,
)

# From this value of arp_ignore on, requests for our addresses may stay unanswered (ip-sysctl).
_SILENT_ARP = 3


class _Service(NamedTuple):
    """{nics} in the remedy: the NICs that the service manages, or all that a plan could name."""

    why: str
    remedy: str


SERVICES = {
    "NetworkManager": _Service(
        "it gives a NIC back the addresses and routes that moved to a bridge, and removes ours",
        "[keyfile] unmanaged-devices={unmanaged};interface-name:pw-* in "
        "/etc/NetworkManager/conf.d/placewire.conf, then nmcli general reload",
    ),
    "systemd-network": _Service(
        "it removes routes and rules that it did not make, unless told not to, and gives a NIC "
        "back the addresses that moved to a bridge",
        "[Network] ManageForeignRoutes=no, ManageForeignRoutingPolicyRules=no in "
        "/etc/systemd/networkd.conf.d/placewire.conf; Unmanaged=yes in a .network file for "
        "{nics}",
    ),
    "dhclient": _Service("it sets addresses and routes again", "give {nics} fixed addresses"),
    "dhcpcd": _Service("it sets addresses and routes again", "denyinterfaces {nics} pw-*"),
    "connmand": _Service("it sets addresses and routes again", "blacklist {nics} in its main.conf"),
    "firewalld": _Service(
        "it drops packets that arrive on interfaces that no zone allows",
        "firewall-cmd --permanent --zone=trusted --add-interface=pw-NIC, for each NIC of the plan",
    ),
    "lldpad": _Service("DCB sets a NIC's queueing discipline", "systemctl disable --now lldpad"),
}  # fmt: skip


def other_findings(facts: Facts) -> Iterator[Finding]:
    yield from _services(facts)
    yield from _filters(facts)
    yield from _sysctls(facts)
    yield from _tables(facts)
    yield from _rules_by_interface(facts)
    for entry in facts.observed.foreign:
        if entry.collection != INTERFACE_RULES:
            yield _not_ours(entry)


def _services(facts: Facts) -> Iterator[Finding]:
    names = [nic.name for nic in facts.candidates]
    managed = dict(facts.others.managed)
    for service in facts.others.services:
        known = SERVICES[service]
        nics = [name for name in names if name in managed.get(service, names)]
        told = service in managed
        if told and not nics:
            continue
        harmless = service == "systemd-network" and facts.others.networkd_keeps_foreign
        shown = " ".join(nics) or "NICs of the plan"
        yield Finding(
            severity="note" if harmless else "warning",
            what=f"runs{' and manages ' + shown if told else ''}",
            where=service, why=known.why,
            remedy=known.remedy.format(
                nics=shown, unmanaged=";".join(f"interface-name:{name}" for name in nics or ["NIC"])
            ),
        )  # fmt: skip


def _filters(facts: Facts) -> Iterator[Finding]:
    if facts.others.ufw_enabled:
        yield Finding(
            severity="warning", what="is enabled", where="ufw",
            why="it drops packets that no rule allows, on our bridges too",
            remedy="ufw allow in on pw-NIC, for each NIC of the plan",
        )  # fmt: skip
    for chain in facts.others.dropping:
        yield Finding(
            severity="warning", what="drops packets that none of its rules accepts",
            where=f"nftables {chain}",
            why="measurements and jobs use TCP ports that are chosen as they start",
            remedy=f"nft insert rule {quoted(chain)} "
            f"{'o' if ' output' in chain.lower() else 'i'}ifname \"pw-*\" accept",
        )  # fmt: skip


def _rules_by_interface(facts: Facts) -> Iterator[Finding]:
    """Finds rules of others that name a NIC, and so apply to nothing while its address is on a
    bridge. For rules of routing, checks_nics.py refuses a NIC that is not taken over yet."""
    taken = {name: bridge_name(name) for name in facts.own.taken_over}
    over = bridges_over(taken, facts.observed)
    for nic in facts.candidates:
        bridge = bridge_name(nic.name)
        for chain, names in facts.others.naming:
            if _names(names, nic.name) and not _names(names, bridge):
                yield Finding(
                    severity="warning", what=f"has rules for {nic.name} and none for {bridge}",
                    where=f"nftables {chain}",
                    why="while a plan has that NIC, its packets come and leave by its bridge, and "
                    "those rules do not apply: what they keep out is then reached from the rail, "
                    "and what they let in is not",
                    remedy=f'write them for iifname or oifname "{bridge}" as well, which need not '
                    f"be there yet (nft list chain {quoted(chain)})",
                )  # fmt: skip
        if nic.name not in over:
            continue
        for rule in rules_naming(nic, over, facts.observed):
            yield Finding(
                severity="warning", what=f"is named by the rule `{rule.text}`",
                where=f"NIC {nic.name}", why=f"it does nothing while {bridge} has its address",
                remedy=quoted(command_for_bridges(rule, over))
                or f"add the same rule for {bridge}, if it is not there yet: `ip rule` and "
                "`ip -6 rule` show all of it",
            )  # fmt: skip


def _names(names: Iterable[str], interface: str) -> bool:
    """names: as nftables has them, where `*` at the end stands for whatever follows."""
    return any(
        interface.startswith(name[:-1]) if name.endswith("*") else name == interface
        for name in names
    )


def _sysctls(facts: Facts) -> Iterator[Finding]:
    values = dict(facts.others.sysctls)
    arp = values.get("net.ipv4.conf.all.arp_ignore", "0")
    if arp.isdigit() and int(arp) >= _SILENT_ARP:
        yield Finding(
            severity="warning", what=f"is {arp}", where="net.ipv4.conf.all.arp_ignore",
            why="the larger of this value and a bridge's own counts: neighbours get no answer",
            remedy="sysctl -w net.ipv4.conf.all.arp_ignore=0 (we set 1 on our bridges)",
        )  # fmt: skip
    if values.get("net.ipv4.conf.all.rp_filter") == "1":
        yield Finding(
            severity="note", what="is 1 (strict)", where="net.ipv4.conf.all.rp_filter",
            why="our bridges get 2 (loose), and the larger counts; other interfaces stay strict",
            remedy="",
        )  # fmt: skip


def _tables(facts: Facts) -> Iterator[Finding]:
    for number, name in facts.others.named_tables:
        if number in TABLES:
            yield Finding(
                severity="warning", what=f"is called {name}", where=f"routing table {number}",
                why=f"tables {TABLES.start} to {TABLES.stop - 1} are ours, but another program "
                "means to use one",
                remedy="give it another number in /etc/iproute2/rt_tables",
            )  # fmt: skip


_PLACES = {
    "bridges": ("only our bridges may have such a name", "rename or remove it"),
    "ports": ("removing our bridge would take it away", "ovs-vsctl del-port BRIDGE PORT"),
    "shapers": ("our queues would replace it", "ovs-vsctl clear port {key} qos"),
    "flows": ("our flow would have its match and priority", "give it another priority"),
    "classifiers": ("our filters have these preferences", "give that filter another preference"),
    "rules": ("our rules have these priorities", "ip rule del priority {key}; add it elsewhere"),
    "routes": ("our routes are in this table", "move it to a table outside 8000..8255"),
    "queues": ("our queue would have its id", "ovs-vsctl remove qos QOS queues ID"),
}  # fmt: skip


def _not_ours(entry: ForeignEntry) -> Finding:
    if entry.collection not in _PLACES:
        return Finding(
            severity="note", what=f"has {entry.text}, which is not ours", where=entry.on,
            why="that would go with it: a change that needs this is refused",
            remedy=entry.remedy,
        )  # fmt: skip
    why, remedy = _PLACES[entry.collection]
    return Finding(
        severity="warning", what=f"is not ours: {entry.text}",
        where=f"{entry.collection} {entry.key}", why=f"{why}; a plan that needs it is refused",
        remedy=entry.remedy or remedy.format(key=quote(entry.key)),
    )  # fmt: skip
