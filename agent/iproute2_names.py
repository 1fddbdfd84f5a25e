"""Turns what iproute2 prints into what it takes back: names of tables, protocols, scopes and the
like into numbers, and words that it prints and does not accept into ones that it does.

A name is what a file of iproute2's says at that moment, and such a file may change while a plan is
in force; the kernel knows the number alone. The agent therefore reads and writes numbers. What an
earlier release wrote down has names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from placewire.agent.contract.state import Ledger, TakenOver

# Where the versions of iproute2 look, first what an administrator says.
FOLDERS = ("etc/iproute2", "usr/share/iproute2", "usr/lib/iproute2")
# By the file that names more: the names that iproute2 knows without it.
_BUILT_IN: Mapping[str, Mapping[str, int]] = {
    "rt_tables": {"default": 253, "main": 254, "local": 255},
    "rt_protos": {
        "redirect": 1, "kernel": 2, "boot": 3, "static": 4, "gated": 8, "ra": 9, "mrt": 10,
        "zebra": 11, "bird": 12, "dnrouted": 13, "xorp": 14, "ntk": 15, "dhcp": 16,
        "keepalived": 18, "babel": 42, "bgp": 186, "isis": 187, "ospf": 188, "rip": 189,
        "eigrp": 192,
    },
    "rt_scopes": {"global": 0, "site": 200, "link": 253, "host": 254, "nowhere": 255},
    "rt_realms": {},
    "rt_dsfield": {},
}  # fmt: skip
# The word of a route or address that comes before a name, and the file of those names.
_FILE_OF = {
    "table": "rt_tables", "proto": "rt_protos", "scope": "rt_scopes", "realm": "rt_realms",
    "realms": "rt_realms", "tos": "rt_dsfield",
}  # fmt: skip
# `ip` locks this metric whenever it is given, says so, and does not accept that.
_ALWAYS_LOCKED = re.compile(r"\brto_min lock ")


def as_accepted(route: str) -> str:
    """The route with the words that `ip route add` accepts. route: as `ip route` prints it."""
    return _ALWAYS_LOCKED.sub("rto_min ", route)


class Names:
    """What the names mean by the files of this server, read once. root: of the files."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._numbers = {
            file: {**built_in, **dict(_rows(root, file))} for file, built_in in _BUILT_IN.items()
        }

    def in_ledger(self, ledger: Ledger) -> Ledger:
        return ledger.model_copy(
            update={
                "nics": tuple(map(self.in_taken, ledger.nics)),
                "owed": tuple(map(self.in_taken, ledger.owed)),
            }
        )

    def in_taken(self, taken: TakenOver) -> TakenOver:
        return taken.model_copy(
            update={
                "addresses": tuple(map(self.in_text, taken.addresses)),
                "routes": tuple(as_accepted(self.in_text(route)) for route in taken.routes),
            }
        )

    def in_text(self, text: str) -> str:
        """An address or route as `ip` prints it, with numbers in the place of names. A name that no
        file has any more stays."""
        words = text.split()
        pairs = zip(["", *words], words, strict=False)
        return " ".join(self._number(_FILE_OF.get(before, ""), word) for before, word in pairs)

    def _number(self, file: str, word: str) -> str:
        if file == "rt_realms" and "/" in word:
            return "/".join(self._number(file, part) for part in word.split("/"))
        number = self._numbers.get(file, {}).get(word)
        if number is None:
            return word
        return f"0x{number:02x}" if file == "rt_dsfield" else str(number)


def _rows(root: Path, file: str) -> Iterator[tuple[str, int]]:
    """(name, number) of each row; the last one counts."""
    for folder in reversed(FOLDERS):
        for path in (root / folder / file, *sorted((root / folder / f"{file}.d").glob("*.conf"))):
            with suppress(OSError):
                for line in path.read_text(errors="backslashreplace").splitlines():
                    words = line.partition("#")[0].split()
                    if len(words) == 2 and (number := _as_number(words[0])) is not None:
                        yield words[1], number


def _as_number(word: str) -> int | None:
    """word: decimal or hexadecimal."""
    with suppress(ValueError):
        return int(word, 16 if word.lower().startswith("0x") else 10)
    return None
