"""Gathers the facts of one server for `agent doctor`: reads only."""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
import shutil
from pathlib import Path

from placewire.agent.contract.config import AgentConfig
from placewire.agent.doctor.facts import Facts, OwnFacts, SwitchFacts
from placewire.agent.doctor.gather_others import other_facts
from placewire.agent.doctor.sockets import mode_allows, socket_facts
from placewire.agent.drivers import abilities
from placewire.agent.drivers.command import run
from placewire.agent.drivers.open_vswitch_version import open_vswitch_version
from placewire.agent.drivers.server import Server
from placewire.agent.drivers.sysctl import read_values
from placewire.agent.own_files import read_own
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import with_known_addresses
from placewire.agent.reconcile.ledger import owed_sentences
from placewire.agent.reconcile.protected import protected_names
from placewire.agent.reconcile.unmarkable import NOTHING_KNOWN, Unmarked, unmarked
from placewire.agent.steady import read_steadily
from placewire.agent.store import LOCK_FILE, StoreError, read_kept
from placewire.agent.wiring import way_towards

UNIT_USER = "placewire"
_TOOLS = ("ip", "tc", "ethtool", "iperf3", "ovs-ofctl", "ovs-vsctl", "unshare")
_SEND_BUFFER = "net.core.wmem_default"
# Of adjtimex(2).
_CLOCK_NOT_SYNCHRONISED = 5
_TIMEX_BYTES = 256


def gather(config: AgentConfig) -> Facts:
    """Raises EffectError where not even the interfaces can be read, or where changes of the server
    begin and end all the time."""
    user = _agent_user()
    server = Server(config)
    (observed, unreadable), own = read_steadily(
        Path(config.state_dir),
        lambda: (server.observe_what_answers(_known(config)), _own(config, user)),
    )
    names = [nic.name for nic in observed.nics]
    return Facts(
        server=config.server,
        agent_user=user.pw_name,
        missing_tools=tuple(tool for tool in _TOOLS if shutil.which(tool) is None),
        kernel_version=platform.release(),
        traffic_control=server.traffic_control,
        offloading=abilities.offloading(names),
        protected=tuple(sorted(protected_names(config.protected, observed.nics))),
        switch=SwitchFacts(
            version=_version(config),
            unreadable=unreadable,
            sockets=socket_facts(config, [b.name for b in observed.bridges], user),
            datapath=server.datapath,
            hardware_offload=unreadable is None and _hardware_offload(config),
            tun=Path("/dev/net/tun").exists(),
            send_buffer_bytes=next(map(int, read_values([_SEND_BUFFER]).values()), None),
        ),
        others=other_facts(),
        own=own,
        observed=observed,
    )


def _known(config: AgentConfig) -> Unmarked:
    """Returns what the agent knows to be its own while a plan is in force. Without a plan, or where
    the state cannot be read, nobody knows whose the addresses of a bridge of ours are."""
    try:
        kept = with_known_addresses(read_kept(Path(config.state_dir)))
    except (OSError, StoreError):
        return NOTHING_KNOWN
    return NOTHING_KNOWN if kept.lease.is_idle else unmarked(kept.desired, kept.ledger)


def _agent_user() -> pwd.struct_passwd:
    """The user of the agent's systemd unit; the current one where that user does not exist."""
    try:
        return pwd.getpwnam(UNIT_USER)
    except KeyError:
        return pwd.getpwuid(os.geteuid())


def _version(config: AgentConfig) -> str | None:
    try:
        return open_vswitch_version(config.ovsdb_remote)
    except EffectError:
        return None


def _hardware_offload(config: AgentConfig) -> bool:
    command = ["ovs-vsctl", "--timeout=5", f"--db={config.ovsdb_remote}", "--if-exists"]
    try:
        said = run([*command, "get", "Open_vSwitch", ".", "other_config:hw-offload"])
    except EffectError:
        return False
    return said.strip().strip('"') == "true"


def _own(config: AgentConfig, user: pwd.struct_passwd) -> OwnFacts:
    directory = Path(config.state_dir)
    kept, problem = None, None
    try:
        kept = read_kept(directory)
    except (OSError, StoreError) as error:
        problem = str(error)
    way = way_towards(config.controller_url)
    named = (config.certificate_file, config.key_file, config.authority_file)
    return OwnFacts(
        state_dir=config.state_dir,
        lease=kept.lease if kept else None,
        state_unreadable=problem,
        taken_over=tuple(taken.nic for taken in kept.ledger.nics) if kept else (),
        owed=owed_sentences(kept.ledger) if kept else (),
        free_bytes=_free_bytes(directory),
        agent_running=_agent_running(directory),
        unreadable_files=tuple(path for path in named if not _readable(Path(path), user)),
        controller_url=config.controller_url,
        way_to_controller=tuple(sorted(way.addresses)),
        controller_interfaces=tuple(sorted(way.interfaces)),
        clock_synchronised=_clock_synchronised(),
    )


def _free_bytes(directory: Path) -> int:
    there = next(p for p in (directory, *directory.parents) if p.exists())
    return shutil.disk_usage(there).free


def _agent_running(directory: Path) -> bool:
    """By the process that the lock names: taking the lock could keep an agent from starting."""
    try:
        number = read_own(directory / LOCK_FILE).decode().strip()
        command = Path(f"/proc/{number}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False
    return b"agent" in command


def _readable(path: Path, user: pwd.struct_passwd) -> bool:
    """By the kernel's word for the current user; by the file's mode for another one."""
    if user.pw_uid == os.geteuid():
        return os.access(path, os.R_OK)
    try:
        status = path.stat()
    except OSError:
        return False
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    return mode_allows(0o4, status.st_mode, (status.st_uid, status.st_gid), user.pw_uid, groups)


def _clock_synchronised() -> bool | None:
    libc = ctypes.CDLL(None)
    state: int = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else state != _CLOCK_NOT_SYNCHRONISED
