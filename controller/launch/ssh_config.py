"""How the ssh of this machine would reach a server: what ~/.ssh/config and /etc/ssh/ssh_config say.

`ssh -G` reads these files for us, so that they mean to ranks what they mean to whoever types `ssh`
and to `controller provision`, whose Ansible runs it: patterns, Include, Match and all.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shlex
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from placewire.controller.errors import LaunchFailed

_SSH = ("ssh",)
# A `Match exec` in these files runs a command.
_LONGEST_SECONDS = 10.0
_NONE = "none"
_TOKEN = re.compile("%(.?)")
# `ssh -G` prints names of files in one line, and quotes none that has spaces.
_NEXT_FILE = re.compile(r" (?=[/~%$])")


@dataclass(frozen=True)
class Destination:
    """host, port: of its sshd. proxy: a shell command whose input and output are the connection;
    "" for TCP. known_as: host and port by which files of host keys have it. keys: files, of which
    ssh-agent may have the private part. uses_agent: whether ssh-agent is asked for keys.
    only_keys: it is asked for none but these. known_hosts: files of host keys.
    own_known_hosts: the first of them that is the user's, also where it is not there yet; None:
    the user has none."""

    host: str
    port: int
    user: str
    proxy: str
    known_as: tuple[str, int]
    keys: tuple[Path, ...]
    uses_agent: bool
    only_keys: bool
    known_hosts: tuple[Path, ...]
    own_known_hosts: Path | None


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
    said = settings_of(where, address, given)

    def one(name: str) -> str:
        value = said[name][0] if name in said else _NONE
        return "" if value == _NONE else value

    host, its_port, its_user = one("hostname"), int(one("port")), one("user")
    alias, jumps = one("hostkeyalias"), one("proxyjump")
    tokens = {"%": "%", "h": host, "n": address, "p": str(its_port), "r": its_user}

    def files_of(kind: str) -> list[Path]:
        paths = _NEXT_FILE.split(one(f"{kind}knownhostsfile"))
        return _expanded(paths, of_files) if paths != [""] else []

    of_files = {**tokens, **_tokens_of_files(tokens, alias, jumps)}
    own = files_of("user") if known_hosts is None else [known_hosts]
    identities = [path for path in said.get("identityfile", ()) if path != _NONE]
    return Destination(
        host,
        its_port,
        its_user,
        proxy=_through(jumps, host, its_port)
        or _with_tokens(one("proxycommand"), tokens, where, address),
        # ssh looks an alias up as it stands, whatever the port.
        known_as=(alias, 22) if alias else (host, its_port),
        keys=_identities(_expanded(identities, of_files)) if key is None else (key,),
        uses_agent=said.get("identityagent") != [_NONE],
        only_keys=key is not None or one("identitiesonly") == "yes",
        known_hosts=(
            tuple(filter(_is_readable, [*own, *files_of("global")]))
            if known_hosts is None
            else (known_hosts,)
        ),
        own_known_hosts=own[0] if own else None,
    )


def settings_of(where: str, address: str, given: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """By key, in small letters, the values that `ssh -G` prints. given: options for ssh. Raises
    LaunchFailed."""
    try:
        done = subprocess.run(
            [*_SSH, "-G", "-T", *given, "--", address],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_LONGEST_SECONDS, check=False,
            # Ctrl-C is for the controller, which may need it to end ranks.
            start_new_session=True,
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
    """Puts in what stands for `%h` and so on, as ssh_config(5) says of a ProxyCommand."""
    try:
        return _TOKEN.sub(lambda token: tokens[token[1]], text)
    except KeyError as error:
        unknown = f"%{error.args[0]} in {text!r} is not known here, but {' '.join(tokens)} are"
        raise _unusable(unknown, where, address) from error


def _tokens_of_files(tokens: Mapping[str, str], alias: str, jumps: str) -> Mapping[str, str]:
    """What stands in names of files besides, as ssh_config(5) says."""
    here = socket.gethostname()
    own = {
        "d": str(Path.home()), "i": str(os.getuid()), "j": jumps, "k": alias or tokens["n"],
        "L": here.partition(".")[0], "l": here, "u": getpass.getuser(),
    }  # fmt: skip
    # An older ssh leaves the jump hosts out of it.
    whole = "".join(({**tokens, **own})[token] for token in "lhprj")
    return {**own, "C": hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest()}


def _expanded(paths: Iterable[str], tokens: Mapping[str, str]) -> list[Path]:
    """Leaves out a file whose name has a token that only another ssh knows, or a user who is not
    here: it is one of many, or ssh by hand would have said so."""
    found = []
    for path in paths:
        if all(token in tokens for token in _TOKEN.findall(path)):
            told = os.path.expandvars(_TOKEN.sub(lambda token: tokens[token[1]], path))
            with suppress(RuntimeError):
                found.append(Path(told).expanduser())
    return found


def _unusable(why: str, where: str, address: str) -> LaunchFailed:
    return LaunchFailed(
        f"ssh's configuration cannot be used: {why}",
        where=where,
        remedy=f"correct it; `ssh -G {address}` shows what ssh makes of it",
    )


def _identities(files: Iterable[Path]) -> tuple[Path, ...]:
    """Those that are there, and those that have only their public part there: their private part
    may be in ssh-agent."""
    return tuple(one for one in files if _is_readable(one) or _is_readable(Path(f"{one}.pub")))


def _is_readable(file: Path) -> bool:
    """ssh looks for keys and host keys in files that few people have."""
    return file.is_file() and os.access(file, os.R_OK)


def _through(jumps: str, host: str, port: int) -> str:
    """The command by which ssh itself goes through these hosts, the last of which reaches ours.
    It asks nobody anything."""
    if not jumps:
        return ""
    *first, last = jumps.split(",")
    hops = ["-J", ",".join(first)] if first else []
    to = last if last.startswith("ssh://") else f"ssh://{last}"
    words = [
        *_SSH,
        "-o",
        "BatchMode=yes",
        # Below that, ssh does not say why the jump host did not reach the server.
        "-o",
        "LogLevel=INFO",
        *hops,
        "-W",
        f"[{host}]:{port}",
        "--",
        to,
    ]
    return shlex.join(words)
