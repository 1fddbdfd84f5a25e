"""Reads and changes kernel settings under /proc/sys, of the agent's network namespace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from placewire.agent.contract.entries import Sysctl
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.steps import EntryStep

_ROOT = Path("/proc/sys")
# In net.ipv4.conf.INTERFACE.leaf, only the interface may contain dots.
_PER_INTERFACE = (("net", "ipv4", "conf"), ("net", "ipv4", "neigh"))


def path_of(name: str) -> Path:
    parts = name.split(".")
    if tuple(parts[:3]) in _PER_INTERFACE and len(parts) > 4:
        parts = [*parts[:3], ".".join(parts[3:-1]), parts[-1]]
    return _ROOT.joinpath(*parts)


def read_sysctls(names: Collection[str]) -> list[Sysctl]:
    """The settings that exist; those of an interface come and go with it."""
    found = []
    for name in sorted(names):
        try:
            text = path_of(name).read_text()
        except FileNotFoundError:
            continue
        found.append(Sysctl(name=name, value=" ".join(text.split())))
    return found


def change_sysctls(steps: Sequence[EntryStep]) -> None:
    for step in steps:
        if isinstance(step.after, Sysctl):
            try:
                path_of(step.after.name).write_text(step.after.value)
            except OSError as error:
                raise EffectError(
                    f"sysctl {step.after.name} = {step.after.value}: {error.strerror}"
                ) from error
