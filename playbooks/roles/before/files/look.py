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


def look(home: str, state: str, record: str, folders: list[str]) -> dict[str, object]:
    """home: of the code. state: the agent's folder. record: lists what was added before. folders:
    to look for."""
    clock = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    return {
        "lacks": [path for path in ("/usr/bin/apt-get", "/run/systemd/system") if not there(path)],
        "home_of_others": not there(record) and holds_other_than_code(Path(home)),
        "controller": there(f"{state}/ca"),
        "record": json.loads(Path(record).read_text()) if there(record) else {},
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
