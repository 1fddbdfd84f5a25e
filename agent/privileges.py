"""Gives root up where the agent's folder belongs to another user.

The owner of a folder decides what is in it: a link there would have root write, or give away, any
file of the server. So a process of the owner, with the privileges that the systemd unit gives the
agent (deploy/placewire-agent.service), opens what is there. It has a session of its own and no
descriptor of root's terminal: whoever has one reads what root types, and types for root.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import IO

from placewire.agent.contract.config import AgentConfig
from placewire.agent.own_files import name_of

UNIT_CAPABILITY = "net_admin"
UNIT_GROUP = "openvswitch"
UNIT_UMASK = 0o027
# A process that the command left behind may have its output open for longer.
_LAST_WORDS_SECONDS = 5.0


def give_root_up(config: AgentConfig, arguments: Sequence[str]) -> int | None:
    """Runs this command as the owner of `state_dir`, and returns its exit code; None where this
    process is not root's, or the folder is root's or not there: then nothing was done. arguments:
    the command's own. Raises OSError."""
    if os.geteuid() != 0:
        return None
    try:
        folder = Path(config.state_dir).stat()
    except FileNotFoundError:
        return None
    if folder.st_uid == 0:
        return None
    # The owner may be unable to read the file that root read.
    known = os.memfd_create("agent.json", 0)
    os.write(known, config.model_dump_json().encode())
    # -P: Python would import from the folder that root happens to be in.
    again = [sys.executable, "-P", "-m", "placewire.command_line", "agent", *arguments]
    command = [*as_owner(folder), *again, "--config", f"/dev/fd/{known}"]
    owner = name_of(folder.st_uid)
    print(
        f"agent: {config.state_dir} belongs to user {owner}: going on as that user",
        file=sys.stderr,
        flush=True,
    )
    try:
        return _run(command, known)
    except FileNotFoundError as error:
        raise OSError(
            "setpriv, with which root is given up, is not installed (util-linux)"
        ) from error
    finally:
        os.close(known)


def _run(command: Sequence[str], known: int) -> int:
    """The command's exit code, as a shell has it. known: the descriptor that it reads. It gets the
    signals that this process gets, and what it prints is printed here."""
    came: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: came.append(number))
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        pass_fds=[known], start_new_session=True, umask=UNIT_UMASK,
    ) as child:  # fmt: skip
        pairs = ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: child.send_signal(number))
        for earlier in came:
            child.send_signal(earlier)
        printing = [Thread(target=_print_on, args=pair, daemon=True) for pair in pairs]
        for one in printing:
            one.start()
        code = child.wait()
        for one in printing:
            one.join(_LAST_WORDS_SECONDS)
    return code if code >= 0 else 128 - code


def _print_on(read: IO[bytes], to: IO[str]) -> None:
    """Reads to the end, also where nobody listens here any longer."""
    with contextlib.suppress(OSError, ValueError):  # It is closed here after the last words.
        while data := os.read(read.fileno(), 65_536):
            with contextlib.suppress(OSError):
                while data:
                    data = data[os.write(to.fileno(), data) :]


def as_owner(folder: os.stat_result) -> list[str]:
    """The words before a command that run it as the folder's owner, with the unit's privileges. An
    owner without an entry among the users has the folder's group alone."""
    group, groups = folder.st_gid, set[int]()
    try:
        user = pwd.getpwuid(folder.st_uid)
        group = user.pw_gid
        groups.update(os.getgrouplist(user.pw_name, group))
    except KeyError:
        groups.add(group)
    # Where there is no such group, Open vSwitch's sockets are root's, and say so.
    with contextlib.suppress(KeyError):
        groups.add(grp.getgrnam(UNIT_GROUP).gr_gid)
    capabilities = f"-all,+{UNIT_CAPABILITY}"
    return [
        "setpriv", f"--reuid={folder.st_uid}", f"--regid={group}",
        f"--groups={','.join(str(number) for number in sorted(groups))}",
        f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}",
        f"--bounding-set={capabilities}", "--no-new-privs", "--pdeathsig=TERM", "--",
    ]  # fmt: skip
