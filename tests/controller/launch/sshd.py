"""A real sshd that a test starts, with keys of its own, for the user who runs the test."""

from __future__ import annotations

import fcntl
import getpass
import os
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

SSHD = Path("/usr/sbin/sshd")
# The folder of sshd's unprivileged part, compiled into sshd; Debian's service makes it at start.
# Tests give it a mode by which it is known; the last sshd of all concurrent tests removes it.
_PRIVILEGE_SEPARATION = Path("/run/sshd")
_MODE_OF_OURS = 0o711


@dataclass(frozen=True)
class Keys:
    """Keys of a host and of its user. known_hosts: lists the host under each address given."""

    folder: Path

    @property
    def host(self) -> Path:
        return self.folder / "host"

    @property
    def user(self) -> Path:
        return self.folder / "user"

    @property
    def temporary(self) -> Path:
        """The folder for temporary files of its sessions alone."""
        return self.folder / "tmp"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def know(self, address: str, port: int) -> None:
        kind, key = self.host.with_suffix(".pub").read_text().split()[:2]
        name = address if port == 22 else f"[{address}]:{port}"
        with self.known_hosts.open("a") as file:
            file.write(f"{name} {kind} {key}\n")


def make_keys(folder: Path) -> Keys:
    folder.mkdir(parents=True, exist_ok=True)
    keys = Keys(folder)
    keys.temporary.mkdir()
    for path in (keys.host, keys.user):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    keys.known_hosts.touch()
    return keys


@contextmanager
def running_sshd(
    keys: Keys,
    address: str,
    port: int,
    inside: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """inside: words in front of sshd's command that run it in a network namespace. options: more
    of sshd's own."""
    with _privilege_separation():
        yield from _running_sshd(keys, address, port, inside, options or {})


@contextmanager
def _privilege_separation() -> Iterator[None]:
    folder = _held()
    try:
        yield
    finally:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_IMODE(os.fstat(folder).st_mode) == _MODE_OF_OURS and not any(
                _PRIVILEGE_SEPARATION.iterdir()
            ):
                _PRIVILEGE_SEPARATION.rmdir()
        except BlockingIOError:
            pass  # the sshd of another test still runs, and that test removes the folder
        finally:
            os.close(folder)


def _held() -> int:
    """Opens and locks the folder, shared with other tests, at its place."""
    while True:
        with suppress(FileExistsError):
            _PRIVILEGE_SEPARATION.mkdir(mode=_MODE_OF_OURS)
        with suppress(FileNotFoundError):
            folder = os.open(_PRIVILEGE_SEPARATION, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(folder, fcntl.LOCK_SH)
            if os.fstat(folder).st_nlink:
                return folder
            os.close(folder)


def _running_sshd(
    keys: Keys, address: str, port: int, inside: Sequence[str], more: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    options = {
        "ListenAddress": f"{address}:{port}", "HostKey": str(keys.host),
        "AuthorizedKeysFile": str(keys.user.with_suffix(".pub")), "PidFile": "none",
        "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no",
        "UsePAM": "yes" if _is_locked() else "no",
        "PermitRootLogin": "yes", "StrictModes": "no", "LogLevel": "ERROR",
        "SetEnv": f"TMPDIR={keys.temporary}", **more,
    }  # fmt: skip
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    command = [*inside, str(SSHD), "-D", "-e", "-f", "/dev/null", *words]
    process = subprocess.Popen(command, stderr=(keys.folder / f"sshd-{address}.log").open("wb"))
    try:
        _await_banner(inside, address, port)
        yield process
    finally:
        process.terminate()
        process.wait()


def _is_locked() -> bool:
    """Whether the user's password is locked: without PAM, sshd then lets nobody in."""
    mark = f"{getpass.getuser()}:!"
    return any(line.startswith(mark) for line in Path("/etc/shadow").read_text().splitlines())


def _await_banner(inside: Sequence[str], address: str, port: int) -> None:
    look = f"exec 3<>/dev/tcp/{address}/{port} && head -c 4 <&3 | grep -q SSH-"
    deadline = time.monotonic() + 60
    while subprocess.run([*inside, "bash", "-c", look], capture_output=True).returncode:
        assert time.monotonic() < deadline, "sshd does not answer"
        time.sleep(0.1)
