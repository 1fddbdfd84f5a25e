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


def change_sysctls(steps: Sequence[EntryStep]) -> None:
    for step in steps:
        if isinstance(step.after, Sysctl):
            try:
                path_of(step.after.name).write_text(step.after.value)
            except OSError as error:
                raise EffectError(
                    f"sysctl {step.after.name} = {step.after.value}: {error.strerror}"
                ) from error
