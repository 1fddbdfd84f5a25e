"""Gives whatever goes wrong in a driver the one type of error that its callers expect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyroute2.netlink.exceptions import NetlinkError

from placewire.agent.reconcile.effects import EffectError


@contextmanager
def as_effect_error(what: str, kind: type[EffectError]) -> Iterator[None]:
    """Turns an unexpected error of the kernel, the database or a tool's output into a `kind`, which
    says what was tried. An EffectError that is no `kind` becomes one too."""
    try:
        yield
    except EffectError as error:
        if isinstance(error, kind):
            raise
        raise kind(f"{what}: {error}") from error
    except (NetlinkError, OSError, LookupError, ValueError) as error:
        raise kind(f"{what}: {type(error).__name__}: {error}") from error
