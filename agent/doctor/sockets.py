"""Looks at Open vSwitch's sockets, and whether the agent's user may write them."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from placewire.agent.contract.config import AgentConfig
from placewire.agent.doctor.facts import SocketFacts

_ACCESS_LIST = "system.posix_acl_access"


def socket_facts(
    config: AgentConfig, bridges: Sequence[str], user: pwd.struct_passwd
) -> tuple[SocketFacts, ...]:
    """The database's socket (none where it is reached over TCP), and each bridge's for flows."""
    paths = [Path(config.openvswitch_run_dir) / f"{bridge}.mgmt" for bridge in bridges]
    if config.ovsdb_remote.startswith("unix:"):
        paths.insert(0, Path(config.ovsdb_remote.removeprefix("unix:")))
    return tuple(_facts(path, user) for path in paths)


def _facts(path: Path, user: pwd.struct_passwd) -> SocketFacts:
    try:
        status = path.stat()
    except FileNotFoundError:
        return SocketFacts(path=str(path), there=False, writable=None)
    except PermissionError:
        return SocketFacts(path=str(path), there=True, writable=False, owner="its folder is closed")
    owner = f"{_user(status.st_uid)}:{_group(status.st_gid)} {status.st_mode & 0o777:04o}"
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    owned_by = (status.st_uid, status.st_gid)
    writable: bool | None = mode_allows(0o2, status.st_mode, owned_by, user.pw_uid, groups)
    if user.pw_uid == os.geteuid():
        writable = os.access(path, os.W_OK)
    elif not writable and _ACCESS_LIST in os.listxattr(path):
        writable = None
    return SocketFacts(path=str(path), there=True, writable=writable, owner=owner)


def mode_allows(
    wanted: int, mode: int, owner: tuple[int, int], uid: int, groups: Sequence[int]
) -> bool:
    """Whether a file's mode lets a user read (wanted: 0o4) or write (0o2) it. owner: (user, group)
    of the file. The first class of users that applies decides."""
    shift = 6 if uid == owner[0] else 3 if owner[1] in groups else 0
    return uid == 0 or bool(mode >> shift & wanted)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
