"""Runs playbooks with ansible-runner, and passes on their progress.

ansible-runner writes its inputs, its artifacts and its SSH connections' sockets into a private
folder, which is removed afterwards; before, these connections are ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from placewire.controller.errors import UsageError
from placewire.controller.launch.ssh_proxy import MOST_AT_ONCE as MOST_THROUGH_A_PROXY
from placewire.controller.provision.inventory import as_data
from placewire.controller.provision.progress import Failed, Progress, read_event
from placewire.controller.provision.proxies import is_behind_a_proxy

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
_MOST_AT_ONCE = 50
_TAIL_LINES = 5
_LOOK_SECONDS = 1
_END_SECONDS = 10.0
# Host keys are always checked, whatever Ansible's settings on this machine say; ansible-runner's
# default is not to. Pipelining sends a module through the connection, not as a file on the server.
# A connection lasts while a server waits for the slowest one, which may install torch meanwhile:
# otherwise all would begin at once again; it carries something now and then, so that nothing in
# between takes it for over. One that is not let in (MaxStartups) is tried again.
_ENVIRONMENT = {
    "ANSIBLE_HOST_KEY_CHECKING": "True",
    "ANSIBLE_SSH_ARGS": "-C -o ControlMaster=auto -o ControlPersist=30m "
    "-o ServerAliveInterval=30 -o StrictHostKeyChecking=yes",
    "ANSIBLE_SSH_RETRIES": "3",
    "ANSIBLE_PIPELINING": "True",
    # Otherwise Ansible ignores an inventory that it cannot read, does nothing and succeeds.
    "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "True",
    "ANSIBLE_KEEP_REMOTE_FILES": "False",
    "ANSIBLE_TIMEOUT": "30",
    "ANSIBLE_NOCOLOR": "True",
}


class Playbooks:
    """inventories: files; later ones override earlier ones. check: changes are only reported."""

    def __init__(self, inventories: Sequence[Path], *, check: bool) -> None:
        self._inventories = [str(path.resolve()) for path in inventories]
        self._check = check

    async def run(
        self,
        playbook: str,
        servers: Sequence[str],
        variables: Mapping[str, Any],
        on_progress: Callable[[Progress], None],
    ) -> None:
        """Runs a file of playbooks/; when cancelled, ends Ansible first. Raises UsageError where
        Ansible cannot run at all."""
        cancelled, tail = threading.Event(), deque[str](maxlen=_TAIL_LINES)
        loop, failed, silent = asyncio.get_running_loop(), False, set(servers)

        def on_event(event: dict[str, Any]) -> bool:
            nonlocal failed
            if host := (event.get("event_data") or {}).get("host"):
                silent.discard(host)
            else:
                tail.extend(line for line in str(event.get("stdout", "")).splitlines() if line)
            if (told := read_event(event)) is not None:
                failed = failed or isinstance(told, Failed)
                loop.call_soon_threadsafe(on_progress, told)
            return False  # ansible-runner keeps no copy of the event

        def work() -> int:
            import ansible_runner

            with tempfile.TemporaryDirectory(prefix="placewire-provision-") as private:
                # A file that ansible-runner reads; arguments would show in a list of processes.
                given = Path(private, "env", "extravars")
                given.parent.mkdir(mode=0o700)
                given.write_text(as_data(variables), encoding="utf-8")
                try:
                    runner = ansible_runner.run(
                        private_data_dir=private,
                        project_dir=str(PLAYBOOKS),
                        playbook=playbook,
                        inventory=self._inventories,
                        limit=",".join(servers),
                        cmdline="--check" if self._check else None,
                        envvars=environment(private),
                        settings={"suppress_output_file": True, "pexpect_timeout": _LOOK_SECONDS},
                        forks=self.at_once(servers),
                        quiet=True,
                        event_handler=on_event,
                        cancel_callback=cancelled.is_set,
                    )
                finally:
                    end_connections(sockets_in(private))
                return int(runner.rc)

        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            status = await asyncio.shield(running)
        except asyncio.CancelledError:
            cancelled.set()
            await running
            raise
        if silent or (status != 0 and not failed):
            missed = f", and said nothing of {', '.join(sorted(silent))}" if silent else ""
            raise UsageError(
                f"Ansible ended with exit status {status}{missed}: {'; '.join(tail)}",
                where=f"playbooks/{playbook}",
                remedy="look at the inventory, and at Ansible's own settings on this machine",
            )

    def at_once(self, servers: Sequence[str]) -> int:
        """Returns of how many servers Ansible does a task at once, and begins connections."""
        if len(servers) <= MOST_THROUGH_A_PROXY:
            return len(servers)
        try:
            known = host_variables([Path(file) for file in self._inventories])
        except UsageError:
            return MOST_THROUGH_A_PROXY  # Ansible says itself what is wrong with them.
        if any(is_behind_a_proxy(server, known.get(server, {})) for server in servers):
            return MOST_THROUGH_A_PROXY
        return min(len(servers), _MOST_AT_ONCE)


def sockets_in(private: str) -> Path:
    """Returns the folder of the sockets of SSH connections that go on between two tasks."""
    return Path(private, "ssh")


def end_connections(sockets: Path) -> None:
    """Ends these connections, of which nobody else could make use."""
    for socket in sockets.glob("*"):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["ssh", "-F", "none", "-o", f"ControlPath={socket}", "-O", "exit", "server"],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=_END_SECONDS, check=False,
            )  # fmt: skip


def environment(private: str) -> dict[str, str]:
    """Returns Ansible's environment. It finds Ansible's programs beside this interpreter."""
    return {
        **_ENVIRONMENT,
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets_in(private)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def host_variables(inventories: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Returns the variables of all these inventories, by host. Raises UsageError."""
    words = [word for path in inventories for word in ("-i", str(path.resolve()))]
    asked = subprocess.run(
        ["ansible-inventory", *words, "--list"],
        # Ansible would obey an ansible.cfg of the folder that this process happens to be in.
        cwd=PLAYBOOKS,
        env={**os.environ, **environment(tempfile.gettempdir())},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    said = [line for line in asked.stderr.splitlines() if line.strip()]
    if asked.returncode != 0:
        raise UsageError(
            f"the inventory cannot be read: {'; '.join(said[-_TAIL_LINES:])}",
            where=str(inventories[-1]),
            remedy="ansible-inventory -i FILE --list says more",
        )
    document = json.loads(asked.stdout, object_hook=_as_it_is)
    in_groups = {host for group in document.values() for host in group.get("hosts", ())}
    known: dict[str, dict[str, Any]] = document.get("_meta", {}).get("hostvars", {})
    return {host: {} for host in in_groups} | known


def _as_it_is(value: dict[str, Any]) -> Any:
    """Returns the text of {"__ansible_unsafe": TEXT}, as Ansible shows data; else the value."""
    return value["__ansible_unsafe"] if set(value) == {"__ansible_unsafe"} else value
