"""Prints what is on this server as one JSON document. Only reads; the server's python3 runs it."""

import base64
import ctypes
import grp
import hashlib
import json
import os
import pwd
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

# Constants of adjtimex(2).
CLOCK_NOT_SYNCHRONISED = 5
TIMEX_BYTES = 256
AGENT = "placewire"
UNIT = Path("/etc/systemd/system/placewire-agent.service")
# The state of a large server takes a few of them.
MOST_BYTES = 64 * 2**20


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
        "obeys": obeyed(config),
        "lease": lease_in(Path(state)),
        "agent_runs": status("systemctl", "-q", "is-active", UNIT.name) == 0,
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


def obeyed(config: Path) -> dict[str, str]:
    """The controller that the agent obeys: the URL that it dials, and the SHA-256 of the authority
    that it trusts. "": there is none, or it is not known."""
    try:
        said = json.loads(config.read_text())
        url, authority = str(said["controller_url"]), Path(said["authority_file"])
    except (OSError, ValueError, LookupError, TypeError):
        return {"url": "", "authority_sha256": ""}
    begins = rb"-----BEGIN CERTIFICATE-----(.*?)-----END"
    found = re.search(begins, ordinary(authority), re.DOTALL)
    try:
        der = base64.b64decode(b"".join(found[1].split()), validate=True) if found else b""
    except ValueError:
        der = b""
    return {"url": url, "authority_sha256": hashlib.sha256(der).hexdigest() if der else ""}


def lease_in(state: Path) -> dict[str, object]:
    """What the agent's state says of its lease. left_seconds: how long its generation stays in
    force where no controller renews it; None: until the agent is told otherwise. The phase is
    "unknown" where neither the state nor its copy can be read."""
    files = [state / name for name in ("state.json", "state.copy.json")]
    for file in files:
        try:
            lease = json.loads(ordinary(file).splitlines()[-1])["lease"]
            ends = lease.get("expires_unix")
            return {
                "phase": str(lease["phase"]),
                "generation": lease.get("generation"),
                "plan_name": lease.get("plan_name"),
                "left_seconds": None if ends is None else round(ends - time.time()),
            }
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return {"phase": "unknown" if any(map(os.path.lexists, files)) else "idle"}


def ordinary(file: Path) -> bytes:
    """What is in this file; b"" where it is none, or cannot be read. In the agent's folder, that
    user decides what has its name: root follows no link there, and waits for no pipe."""
    try:
        follows = file.parent.stat().st_uid in (0, os.geteuid())
        flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follows else os.O_NOFOLLOW)
        with os.fdopen(os.open(file, flags), "rb") as opened:
            is_file = stat.S_ISREG(os.fstat(opened.fileno()).st_mode)
            return opened.read(MOST_BYTES) if is_file else b""
    except OSError:
        return b""


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
