"""Runs a bare Debian in qemu (deploy/kernel-machine) that can install packages.

It uses the present machine's proxy for Debian's packages, and gets Python packages from a server on
the present machine's loopback.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.paths import ROOT

# The present machine's address in qemu's user network.
THIS_MACHINE = "10.0.2.2"
# Paths that change on any running Debian: logs, caches, lists of packages, time stamps of timers;
# and Ansible's folder for modules, which stays there empty.
_RESTLESS = (
    "/proc", "/sys", "/dev", "/run", "/tmp", "/lost+found", "/var/log", "/var/cache",
    "/var/lib/apt", "/var/lib/dpkg", "/var/lib/systemd", "/var/lib/private", "/var/backups",
    "/root/.ansible",
)  # fmt: skip


def _machine_module() -> ModuleType:
    """Imports machine.py by its path: deploy/kernel-machine is no package."""
    folder = ROOT / "deploy" / "kernel-machine"
    sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location("machine", folder / "machine.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["machine"] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def bare_machine(limit_seconds: float) -> Iterator[Any]:
    """Yields a running machine.Machine, whose first NIC is for management, its second `eth1`."""
    module = _machine_module()
    image = module.image_directory("bare")
    with module.machine(image, limit_seconds, isolated=False, nics=1) as running:
        _lend_proxy(running)
        # In emulation a busy machine's systemd takes longer than the usual 25 s to answer.
        running.ask("echo SYSTEMD_BUS_TIMEOUT=600s >> /etc/environment")
        running.ask("systemctl is-system-running --wait || true")
        yield running


def _lend_proxy(running: Any) -> None:
    """Gives the machine the proxy that apt uses here, if there is one."""
    said = subprocess.run(["apt-config", "dump"], capture_output=True, text=True).stdout
    lines = [line for line in said.splitlines() if line.lower().startswith("acquire::http::proxy")]
    for line in lines:
        there = line.replace("127.0.0.1", THIS_MACHINE).replace("localhost", THIS_MACHINE)
        running.ask(f"echo '{there}' >> /etc/apt/apt.conf.d/00lent-proxy")


def fetch_packages(running: Any, folder: Path, *what: str) -> None:
    """Fetches wheels for the machine's Python."""
    version = running.ask("python3 -c 'import platform; print(platform.python_version())'").strip()
    script = ROOT / "deploy" / "kernel-machine" / "wheels.sh"
    subprocess.run([str(script), version, str(folder), *what], check=True)


@contextmanager
def served(folder: Path) -> Iterator[Mapping[str, str]]:
    """Serves the folder; yields the environment in which the machine's pip installs from it
    only."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": f"http://{THIS_MACHINE}:{server.server_port}/",
                "PIP_TRUSTED_HOST": THIS_MACHINE,
            }
        finally:
            server.shutdown()


def snapshot(running: Any) -> dict[str, str]:
    """Everything whose change an administrator would notice: packages, units, users, settings, and
    all files with mode and owner, below /etc also with their contents."""
    prune = " -o ".join(f"-path {path}" for path in _RESTLESS)
    asked = {
        "packages": "dpkg-query --show --showformat '${Package} ${Version} ${db:Status-Abbrev}\\n'",
        "held and automatic": "apt-mark showmanual",
        "units": "systemctl list-unit-files --no-legend --no-pager",
        "running": "systemctl list-units --no-legend --no-pager --plain --type=service "
        "--state=running | cut -d' ' -f1",
        "users": "getent passwd; getent group",
        "files": f"find / -xdev \\( {prune} \\) -prune "
        "-o -not -name __pycache__ -not -name '*.pyc' -printf '%p %y %M %u:%g %l\\n' "
        "| LC_ALL=C sort",
        # passwd- and its like are backups of the state before the last.
        "contents": "find /etc -xdev -type f -not -name '*-' -exec sha256sum {} + "
        "| LC_ALL=C sort -k2",
        "send buffer": "cat /proc/sys/net/core/wmem_default",
        "addresses": "cat /proc/net/route; cat /proc/net/fib_trie | grep -c LOCAL",
    }
    return {what: running.ask(command) for what, command in asked.items()}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The lines that only `after` (+) or only `before` (-) has."""
    found = []
    for what, text in before.items():
        then, now = set(text.splitlines()), set(after[what].splitlines())
        found += [f"{what}: - {line}" for line in sorted(then - now)]
        found += [f"{what}: + {line}" for line in sorted(now - then)]
    return found
