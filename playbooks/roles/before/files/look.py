"""Prints what is on this server as one JSON document. Only reads; the server's python3 runs it."""

import ctypes
import grp
import json
import pwd
import subprocess
import sys
import time
from pathlib import Path

# Constants of adjtimex(2).
CLOCK_NOT_SYNCHRONISED = 5
TIMEX_BYTES = 256
AGENT = "placewire"
UNIT = Path("/etc/systemd/system/placewire-agent.service")


def look(home: str, state: str, record: str, folders: list[str]) -> dict[str, object]:
    """home: of the code. state: the agent's folder. record: lists what was added before. folders:
    to look for."""
    recorded = json.loads(Path(record).read_text()) if there(record) else {}
    config = Path(record).with_name("agent.json")
    clock = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    return {
        "lacks": [path for path in ("/usr/bin/apt-get", "/run/systemd/system") if not there(path)],
        "python": "{}.{}".format(*sys.version_info),
        "home_of_others": not there(record) and holds_other_than_code(Path(home)),
        "controller": there(f"{state}/ca"),
        "record": recorded,
        "user_of_others": AGENT not in recorded.get("users", []) and lives_elsewhere(state),
        "protected": protected(config),
        "agent_is_older": agent_is_older([*own_files(Path(home)), config]),
        "packages": packages(),
        "groups": [group.gr_name for group in grp.getgrall()],
        "users": [user.pw_name for user in pwd.getpwall()],
        "folders": [folder for folder in folders if there(folder)],
        "send_buffer_bytes": int(Path("/proc/sys/net/core/wmem_default").read_text()),
        "kernel_datapath": status("modprobe", "--dry-run", "--quiet", "openvswitch") == 0,
        "socket_group": group_of("/run/openvswitch/db.sock"),
        "network_manager": there("/etc/NetworkManager/conf.d"),
        "networkd": status("systemctl", "--quiet", "is-enabled", "systemd-networkd.service") == 0,
        "unix": time.time(),
        "clock_synchronised": None if clock < 0 else clock != CLOCK_NOT_SYNCHRONISED,
    }


def there(path: str) -> bool:
    return Path(path).exists()


def holds_other_than_code(home: Path) -> bool:
    """Whether something is there, and no code that an installation has unpacked."""
    if not home.is_dir():
        return home.exists()
    return any(home.iterdir()) and not any(home.glob(".code-*"))


def lives_elsewhere(state: str) -> bool:
    """Whether there is a user of the agent's name that is not as the agent's: somebody may log in
    as that user, and would get another home and no shell."""
    try:
        user = pwd.getpwnam(AGENT)
    except KeyError:
        return False
    return user.pw_dir != state or Path(user.pw_shell).name not in ("nologin", "false")


def protected(config: Path) -> list[str] | None:
    """The interfaces that the agent's configuration protects already; None: it does not say so in
    a way that is understood here."""
    try:
        names = json.loads(config.read_text()).get("protected", [])
    except FileNotFoundError:
        return []
    except (ValueError, AttributeError):
        return None
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    return None


def own_files(home: Path) -> list[Path]:
    """What the agent runs by, each written last of what belongs to it."""
    return [*home.glob(".code-*"), home / ".venv/placewire-agent.stamp", UNIT]


def agent_is_older(files: list[Path]) -> bool:
    """Whether the agent runs, and began before the newest of these files was written: what wrote it
    was interrupted before it restarted the agent."""
    show = ("systemctl", "show", "--property=ExecMainStartTimestampMonotonic", "--value", UNIT.name)
    try:
        said = subprocess.run(show, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return False
    # 0: it was never started.
    if not said.isdigit() or not int(said) or status("systemctl", "-q", "is-active", UNIT.name):
        return False
    began_unix = time.time() - (time.monotonic() - int(said) / 1e6)
    return any(file.stat().st_mtime > began_unix for file in files if file.exists())


def packages() -> list[str]:
    form = "${Package} ${db:Status-Status}\n"
    said = subprocess.run(
        ["dpkg-query", "--show", "--showformat", form], capture_output=True, text=True, check=False
    ).stdout
    rows = (line.split() for line in said.splitlines())
    return sorted({row[0] for row in rows if row[1:] == ["installed"]})


def status(*command: str) -> int:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode
    except OSError:
        return 127


def group_of(path: str) -> str:
    try:
        return grp.getgrgid(Path(path).stat().st_gid).gr_name
    except (OSError, KeyError):
        return ""


if __name__ == "__main__":
    print(json.dumps(look(*sys.argv[1:4], sys.argv[4:])))
