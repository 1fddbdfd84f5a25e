"""Gives root up where the agent's folder belongs to another user.

The owner of a folder decides what is in it: a link there would have root write, or give away, any
file of the server. So root becomes the owner, with the privileges that the systemd unit gives the
agent (deploy/placewire-agent.service), before it opens anything there.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

from placewire.agent.contract.config import AgentConfig

UNIT_CAPABILITY = "net_admin"
UNIT_GROUP = "openvswitch"
UNIT_UMASK = 0o027


def give_root_up(config: AgentConfig, arguments: Sequence[str]) -> None:
    """Executes this command anew as the owner of `state_dir`; returns where this process is not
    root's, or the folder is root's or not there. arguments: the command's own. Raises OSError."""
    if os.geteuid() != 0:
        return
    try:
        folder = Path(config.state_dir).stat()
    except FileNotFoundError:
        return
    if folder.st_uid == 0:
        return
    # The owner may be unable to read the file that root read.
    known = os.memfd_create("agent.json", 0)
    os.write(known, config.model_dump_json().encode())
    # -P: Python would import from the folder that root happens to be in.
    again = [sys.executable, "-P", "-m", "placewire.agent.main", *arguments]
    command = [*as_owner(folder), *again, "--config", f"/dev/fd/{known}"]
    print(
        f"agent: {config.state_dir} belongs to user {_name(folder.st_uid)}: going on as that user",
        file=sys.stderr,
        flush=True,
    )
    os.umask(UNIT_UMASK)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError as error:
        raise OSError(
            "setpriv, with which root is given up, is not installed (util-linux)"
        ) from error


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
        f"--bounding-set={capabilities}", "--no-new-privs", "--",
    ]  # fmt: skip


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
