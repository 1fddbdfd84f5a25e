"""Reads and changes kernel settings under /proc/sys, of the agent's network namespace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from placewire.agent.contract.entries import Sysctl
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.steps import EntryStep

_ROOT = Path("/proc/sys")
# In net.ipv4.conf.INTERFACE.leaf, only the interface may contain dots.
_PER_INTERFACE = (("net", "ipv4", "conf"), ("net", "ipv4", "neigh"), ("net", "ipv6", "conf"))


def path_of(name: str) -> Path:
    """Raises EffectError where a part of the name would lead elsewhere than into the next folder:
    joined to a path, "/etc" would replace it."""
    parts = name.split(".")
    if tuple(parts[:3]) in _PER_INTERFACE and len(parts) > 4:
        parts = [*parts[:3], ".".join(parts[3:-1]), parts[-1]]
    if any(part in ("", ".", "..") or "/" in part for part in parts):
        raise EffectError(f"{name!r} is no name of a kernel setting")
    return _ROOT.joinpath(*parts)


def read_values(names: Collection[str]) -> dict[str, str]:
    """By name, the values of the settings that exist, of interfaces and of the whole server."""
    found = {}
    for name in sorted(names):
        try:
            text = path_of(name).read_text()
        except FileNotFoundError:
            continue
        found[name] = " ".join(text.split())
    return found


def read_sysctls(names: Collection[str]) -> list[Sysctl]:
    """The settings that exist; those of an interface come and go with it."""
    return [Sysctl(name=name, value=value) for name, value in read_values(names).items()]


def switch_ipv6_off(interface: str) -> None:
    """Does nothing where the kernel has no IPv6. Raises EffectError."""
    path = path_of(f"net.ipv6.conf.{interface}.disable_ipv6")
    try:
        path.write_text("1")
    except FileNotFoundError:
        return
    except OSError as error:
        raise EffectError(f"{path} = 1: {error.strerror}") from error


def switch_ipv6_on(interface: str) -> None:
    """For addresses that move to this bridge: none is configured from a router's advertisement, its
    link-local address is not looked for elsewhere before it works, and neighbours are told where
    its MAC address is set. Does nothing where IPv6 is on: whoever switched it on may have set these
    otherwise. Raises EffectError."""
    folder = f"net.ipv6.conf.{interface}"
    if read_values([f"{folder}.disable_ipv6"]) == {f"{folder}.disable_ipv6": "0"}:
        return
    values = {"accept_ra": "0", "accept_dad": "0", "ndisc_notify": "1", "disable_ipv6": "0"}
    for key, value in values.items():
        _write(f"{folder}.{key}", value)


def change_sysctls(steps: Sequence[EntryStep]) -> None:
    for step in steps:
        if isinstance(step.after, Sysctl):
            _write(step.after.name, step.after.value)


def _write(name: str, value: str) -> None:
    try:
        path_of(name).write_text(value)
    except OSError as error:
        raise EffectError(f"sysctl {name} = {value}: {error.strerror}") from error
