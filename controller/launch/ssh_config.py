"""How the ssh of this machine would reach a server: what ~/.ssh/config and /etc/ssh/ssh_config say.

`ssh -G` reads these files for us, so that they mean to ranks what they mean to whoever types `ssh`
and to `controller provision`, whose Ansible runs it: patterns, Include, Match and all.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placewire.controller.errors import LaunchFailed

_SSH = ("ssh",)
# A `Match exec` in these files runs a command.
_LONGEST_SECONDS = 10.0
_NONE = "none"
_TOKEN = re.compile("%(.?)")


@dataclass(frozen=True)
class Destination:
    """host, port: of its sshd. proxy: a shell command whose input and output are the connection;
    "" for TCP. known_as: host and port by which files of host keys have it. keys: files.
    uses_agent: whether ssh-agent may have a key, too. known_hosts: files of host keys."""

    host: str
    port: int
    user: str
    proxy: str
    known_as: tuple[str, int]
    keys: tuple[Path, ...]
    uses_agent: bool
    known_hosts: tuple[Path, ...]


def destination_of(
    where: str,
    address: str,
    *,
    user: str | None,
    port: int | None,
    key: Path | None,
    known_hosts: Path | None,
) -> Destination:
    """What is given wins; None: as the files say. Raises LaunchFailed, which names the file and the
    line that cannot be used."""
    given = [*([] if user is None else ["-l", user]), *([] if port is None else ["-p", str(port)])]
    said = _said(where, address, given)

    def one(name: str) -> str:
        value = said[name][0] if name in said else _NONE
        return "" if value == _NONE else value

    host, its_port, its_user = one("hostname"), int(one("port")), one("user")
    tokens = {
        "%": "%", "h": host, "n": address, "p": str(its_port), "r": its_user,
        "d": str(Path.home()), "i": str(os.getuid()), "l": socket.gethostname(),
    }  # fmt: skip

    def told(text: str) -> str:
        return _with_tokens(text, tokens, where, address)

    alias = one("hostkeyalias")
    files = [path for kind in ("user", "global") for path in one(f"{kind}knownhostsfile").split()]
    identities = [told(path) for path in said.get("identityfile", ()) if path != _NONE]
    return Destination(
        host,
        its_port,
        its_user,
        proxy=_through(one("proxyjump"), host, its_port) or told(one("proxycommand")),
        # ssh looks an alias up as it stands, whatever the port.
        known_as=(alias, 22) if alias else (host, its_port),
        keys=_readable(identities) if key is None else (key,),
        uses_agent=key is None
        and one("identitiesonly") != "yes"
        and said.get("identityagent") != [_NONE],
        known_hosts=_readable(files) if known_hosts is None else (known_hosts,),
    )


def _said(where: str, address: str, given: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """By key, in small letters, the values that `ssh -G` prints."""
    try:
        done = subprocess.run(
            [*_SSH, "-G", "-T", *given, "--", address],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_LONGEST_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise LaunchFailed(
            "this machine has no ssh, which reads ~/.ssh/config",
            where=where,
            remedy="install it here (Debian: apt install openssh-client)",
        ) from error
    except subprocess.TimeoutExpired as error:
        why = f"ssh did not read it within {_LONGEST_SECONDS:g} s: look at its `Match exec`"
        raise _unusable(why, where, address) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _unusable(lines[0] if lines else f"exit {done.returncode}", where, address)
    found: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        found[name.lower()].append(value)
    return found


def _with_tokens(text: str, tokens: Mapping[str, str], where: str, address: str) -> str:
    """Puts in what stands for `%h` and so on, as ssh_config(5) says."""
    try:
        return _TOKEN.sub(lambda token: tokens[token[1]], text)
    except KeyError as error:
        unknown = f"%{error.args[0]} in {text!r} is not known here, but {' '.join(tokens)} are"
        raise _unusable(unknown, where, address) from error


def _unusable(why: str, where: str, address: str) -> LaunchFailed:
    return LaunchFailed(
        f"ssh's configuration cannot be used: {why}",
        where=where,
        remedy=f"correct it; `ssh -G {address}` shows what ssh makes of it",
    )


def _readable(paths: Iterable[str]) -> tuple[Path, ...]:
    """Those that are there: ssh looks for keys and host keys in files that few people have."""
    files = [Path(os.path.expandvars(path)).expanduser() for path in paths]
    return tuple(file for file in files if file.is_file() and os.access(file, os.R_OK))


def _through(jumps: str, host: str, port: int) -> str:
    """The command by which ssh itself goes through these hosts, the last of which reaches ours.
    It asks nobody anything."""
    if not jumps:
        return ""
    *first, last = jumps.split(",")
    hops = ["-J", ",".join(first)] if first else []
    to = last if last.startswith("ssh://") else f"ssh://{last}"
    words = [*_SSH, "-o", "BatchMode=yes", *hops, "-W", f"[{host}]:{port}", "--", to]
    return shlex.join(words)
