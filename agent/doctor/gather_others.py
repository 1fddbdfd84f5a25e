"""Gathers other programs and settings: services, firewalls, named routing tables, sysctls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placewire.agent.doctor.checks_others import SERVICES
from placewire.agent.doctor.facts import OtherFacts
from placewire.agent.drivers.command import parsed, run
from placewire.agent.drivers.sysctl import read_values
from placewire.agent.own_files import read_ordinary
from placewire.agent.reconcile.effects import EffectError

_SYSCTLS = ("net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.rp_filter")
_NETWORKD = (
    "/etc/systemd/networkd.conf",
    *(f"{root}/systemd/networkd.conf.d/*.conf" for root in ("/usr/lib", "/run", "/etc")),
)
_TABLES = ("/etc/iproute2/rt_tables", "/etc/iproute2/rt_tables.d/*.conf")
# By these words a rule of nftables asks for a packet's interfaces.
_INTERFACE_KEYS = ("iif", "iifname", "oif", "oifname")
_UFW = "/etc/ufw/ufw.conf"


def other_facts() -> OtherFacts:
    services, ruleset = _services(), _ruleset()
    return OtherFacts(
        services=services,
        managed=tuple(_managed(services)),
        networkd_keeps_foreign=keeps_foreign(_texts(*_NETWORKD)),
        ufw_enabled=any(re.search(r"^ENABLED=yes\b", t, re.MULTILINE) for t in _texts(_UFW)),
        dropping=dropping_chains(ruleset),
        naming=naming_chains(ruleset),
        named_tables=tuple(table for text in _texts(*_TABLES) for table in named_tables(text)),
        sysctls=tuple(read_values(_SYSCTLS).items()),
    )


def _services() -> tuple[str, ...]:
    """Known services in this network namespace, or in one that this user may not look at."""
    here = Path("/proc/self/ns/net").stat().st_ino
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            name = (process / "comm").read_text(errors="replace").strip()
            if name not in SERVICES:
                continue
            if (process / "ns/net").stat().st_ino == here:
                found.add(name)
        except PermissionError:
            found.add(name)
        except OSError:
            continue  # The process has ended meanwhile.
    return tuple(sorted(found))


def _managed(services: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(service, NICs that it manages) of each service that answers."""
    asked = (
        ("NetworkManager", "nmcli -t -f DEVICE,STATE device", nmcli_managed),
        ("systemd-network", "networkctl list --no-legend --no-pager", networkctl_managed),
    )
    for service, command, names in asked:
        if service in services:
            try:
                yield service, names(run(command.split()))
            except EffectError:
                continue


def nmcli_managed(text: str) -> tuple[str, ...]:
    """text: of `nmcli -t -f DEVICE,STATE device`."""
    pairs = (line.rpartition(":") for line in text.splitlines())
    return tuple(name for name, _, state in pairs if state != "unmanaged")


def networkctl_managed(text: str) -> tuple[str, ...]:
    """text: of `networkctl list`: number, name, type, operational state, set-up state."""
    rows = (line.split() for line in text.splitlines())
    return tuple(row[1] for row in rows if len(row) >= 5 and row[4] != "unmanaged")


def keeps_foreign(texts: list[str]) -> bool:
    """Whether systemd-networkd, with these configuration files, leaves others' routes and rules
    alone; later files win."""
    values: dict[str, str] = {}
    for text in texts:
        values.update(re.findall(r"^\s*(ManageForeign\w+)\s*=\s*(\S+)", text, re.MULTILINE))
    said = [values.get(f"ManageForeign{kind}") for kind in ("Routes", "RoutingPolicyRules")]
    return all(value in ("no", "false", "0", "off") for value in said)


def named_tables(text: str) -> list[tuple[int, str]]:
    """(number, name). text: of an rt_tables file."""
    rows = (line.partition("#")[0].split() for line in text.splitlines())
    return [(int(row[0]), row[1]) for row in rows if len(row) == 2 and row[0].isdigit()]


def _ruleset() -> dict[str, Any]:
    try:
        ruleset: dict[str, Any] = parsed(run(["nft", "-j", "list", "ruleset"]))
    except (EffectError, ValueError):
        return {}  # nft is not installed, or this user may not ask it.
    return ruleset


def dropping_chains(ruleset: dict[str, Any]) -> tuple[str, ...]:
    """The base chains at input and output that end in drop, as `nft` names them: "inet filter
    input". ruleset: of `nft -j list ruleset`."""
    chains = (entry["chain"] for entry in ruleset.get("nftables", []) if "chain" in entry)
    return tuple(
        f"{chain['family']} {chain['table']} {chain['name']}"
        for chain in chains
        if chain.get("hook") in ("input", "output") and chain.get("policy") == "drop"
    )


def naming_chains(ruleset: dict[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The chains whose rules look at an interface's name or number, each with the names that they
    look for. ruleset: of `nft -j list ruleset`."""
    entries = ruleset.get("nftables", [])
    sets = {
        (one["family"], one["table"], f"@{one['name']}"): one.get("elem", [])
        for entry in entries
        for one in (entry.get("set"), entry.get("map"))
        if one is not None
    }
    found: dict[str, set[str]] = {}
    for rule in (entry["rule"] for entry in entries if "rule" in entry):
        table = rule["family"], rule["table"]
        for statement in rule["expr"]:
            if _looks_at_interfaces(statement):
                names = {*_words_of(statement)}
                for name in [name for name in names if name.startswith("@")]:
                    names.remove(name)
                    names.update(_words_of(sets.get((*table, name), [])))
                found.setdefault(" ".join([*table, rule["chain"]]), set()).update(names)
    return tuple((chain, tuple(sorted(names))) for chain, names in found.items())


def _looks_at_interfaces(expression: Any) -> bool:
    if isinstance(expression, dict):
        meta = expression.get("meta")
        named = isinstance(meta, dict) and meta.get("key") in _INTERFACE_KEYS
        return named or any(map(_looks_at_interfaces, expression.values()))
    return isinstance(expression, list) and any(map(_looks_at_interfaces, expression))


def _words_of(expression: Any) -> Iterator[str]:
    """The words that are compared with something, and not those that say what is compared or what
    follows from it."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, list):
        for one in expression:
            yield from _words_of(one)
    elif isinstance(expression, dict):
        for key, value in expression.items():
            if key not in ("op", "meta", "payload", "ct", "jump", "goto", "comment"):
                yield from _words_of(value)


def _texts(*patterns: str) -> list[str]:
    """The texts of the files that can be read, in the order of the patterns, then of the names."""
    found = []
    for pattern in patterns:
        for path in sorted(Path("/").glob(pattern.lstrip("/"))):
            try:
                found.append(read_ordinary(path).decode(errors="replace"))
            except OSError:
                continue
    return found
