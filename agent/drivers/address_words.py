"""An address in the words of `ip address`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from placewire.agent.reconcile.command_words import identity_of_address

_FOREVER = 0xFFFFFFFF
# These flags of an address were set by somebody, or are how the kernel tells its state; `ip address
# add` takes the first four.
_FLAGS = (
    "noprefixroute", "nodad", "home", "autojoin", "mngtmpaddr", "temporary", "optimistic",
    "dadfailed",
)  # fmt: skip
_BLANK = re.compile(r"\s")


def address_command(entry: Mapping[str, Any]) -> str:
    """The address as `ip address add` accepts it. entry: as `ip -j address` shows it."""
    words = [f"{entry['local']}/{entry['prefixlen']}"]
    if "address" in entry:
        words = [entry["local"], "peer", f"{entry['address']}/{entry['prefixlen']}"]
    for key in ("broadcast", "scope", "label", "metric"):
        if key in entry:
            # A label may hold a blank, which would end the word.
            words += [key, _BLANK.sub(lambda found: f"\\x{ord(found[0]):02x}", str(entry[key]))]
    words += [flag for flag in _FLAGS if entry.get(flag)]
    if entry.get("dynamic") or 0 < entry.get("preferred_life_time", 0) < _FOREVER:
        words.append("dynamic")
    if entry.get("deprecated"):
        words += ["preferred_lft", "0"]
    return " ".join(words)


def identity_of(entry: Mapping[str, Any]) -> list[str]:
    """The words that name an address to `ip address del`. entry: as `ip -j address` shows it."""
    return list(identity_of_address(address_command(entry)))
