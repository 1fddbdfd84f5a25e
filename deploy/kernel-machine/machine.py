"""Boots a stock Debian in qemu under software emulation and runs one command there, as root.

    .venv/bin/python deploy/kernel-machine/machine.py [--limit SECONDS] -- COMMAND
    .venv/bin/python deploy/kernel-machine/machine.py --prepare

The command runs in /opt/placewire, which holds this checkout; its output is passed on, and its
exit status is this program's. What the machine writes to its disk is thrown away: every run starts
from the image as `make setup-kernel` built it. The machine reaches nothing but itself, and only
this machine reaches it, on a loopback port. It ends with this program, however that ends.

A boot takes most of a minute in emulation. So --prepare boots the image once, writes the running
machine's memory to a file beside it, and every run goes on from there; --boot boots all the same.
Another version of qemu might not read that memory, so the file is named by the version. A memory
that no machine goes on from is not kept.

Exit 3: there is no image, or no qemu. 4: the machine did not come up. 5: the limit ran out.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from monitor import Monitor, MonitorError

ROOT = Path(__file__).resolve().parents[2]
HOME = "/opt/placewire"
CODE = (
    "agent", "controller", "job", "optimizer", "oracle", "examples", "src", "tests", "deploy",
    "pyproject.toml",
)  # fmt: skip
EXIT_NOT_SET_UP, EXIT_NOT_UP, EXIT_LATE = 3, 4, 5
_QEMU = "qemu-system-x86_64"
# As they are when the memory is written, so they must be when it is read.
_MEMORY_MEBIBYTES = 3072
_PROCESSORS = 2
_BOOT_SECONDS = 300.0
# From memory it takes some ten; what it was written of has booted before.
_PROOF_SECONDS = 120.0
_PREPARATIONS = 3
_CONSOLE_LINES = 30


class MachineError(Exception):
    def __init__(self, what: str, status: int) -> None:
        super().__init__(what)
        self.status = status


def image_directory(variant: str = "agent") -> Path:
    """variant: of image.sh. Raises MachineError where its `make setup-…` has not been run for these
    sources."""
    script = f'variant={variant}; source deploy/kernel-machine/image.sh; echo "$DEBIAN $image"'
    asked = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        raise MachineError(asked.stderr.strip(), EXIT_NOT_SET_UP)
    release, _, path = asked.stdout.strip().partition(" ")
    image = Path(path)
    target = "kernel" if variant == "agent" else "provision"
    remedy = f"run `make setup-{target} DEBIAN={release}`"
    if not (image / "complete").exists():
        raise MachineError(f"no image at {image}: {remedy}", EXIT_NOT_SET_UP)
    missing = [name for name in (_QEMU, "ssh", "setpriv") if shutil.which(name) is None]
    if missing:
        raise MachineError(f"{', '.join(missing)} not found: {remedy}", EXIT_NOT_SET_UP)
    return image


class Machine:
    """A running one. scratch: holds its console's log and SSH's files. preparing: what it writes
    to its disk stays there. isolated: it reaches nothing but itself; else what this machine does,
    and this machine itself at 10.0.2.2.

    ssh_port: of its sshd, on this machine's loopback. key: the file of root's key; host_key: of its
    sshd's public one.
    """

    def __init__(
        self,
        image: Path,
        scratch: Path,
        deadline: float,
        *,
        memory: Path | None,
        preparing: bool,
        isolated: bool,
        nics: int,
    ) -> None:
        self._scratch = scratch
        self._deadline = deadline
        self.ssh_port = _free_port()
        self.key = scratch / "key"
        shutil.copy(image / "key", self.key)
        self.key.chmod(0o600)
        self.host_key = image / "host_key.pub"
        self._stands_still = memory is not None
        self._qemu = subprocess.Popen(
            [
                *_hardware(image, self.ssh_port, isolated=isolated),
                *_more_nics(nics),
                "-serial", f"file:{self._console}",
                "-qmp", f"unix:{scratch}/qmp,server=on,wait=off",
                *([] if preparing else ["-snapshot"]),
                *([] if memory is None else ["-incoming", f"exec:cat {shlex.quote(str(memory))}"]),
            ],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def _console(self) -> Path:
        return self._scratch / "console.log"

    def wait_until_up(self) -> None:
        """Until sshd greets. Raises MachineError."""
        until = min(time.monotonic() + _BOOT_SECONDS, self._deadline)
        while not (self._goes_on() and _greets(self.ssh_port)):
            if self._qemu.poll() is not None or time.monotonic() > until:
                said = self._console.read_text(errors="replace").splitlines()[-_CONSOLE_LINES:]
                raise MachineError("\n".join(["the machine did not come up:", *said]), EXIT_NOT_UP)
            time.sleep(0.2)

    def _goes_on(self) -> bool:
        """What was written of a machine that stood still stands still when all of it is read."""
        if self._stands_still:
            with suppress(OSError, MonitorError), Monitor(self._scratch / "qmp") as monitor:
                if monitor.ask("query-status").get("status") == "paused":
                    monitor.ask("cont")
                    self._stands_still = False
        return not self._stands_still

    def install_code(self) -> None:
        there = [name for name in CODE if (ROOT / name).exists()]
        # As fast as this processor is; it serves a machine whose Python is of the same version.
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", *there], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        pack = ["tar", "-C", str(ROOT), "-cz", *there]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
            unpack = f"tar -xz --no-same-owner --warning=no-timestamp -C {HOME}"
            status = self._ssh(unpack, stdin=packing.stdout)
        if status or packing.returncode:
            raise MachineError("the code could not be copied into the machine", EXIT_NOT_UP)
        # Another version compiles it there, once: agents start often, and may not write there.
        self.run(".venv/bin/python -m compileall -q agent oracle tests/agent tests/kernel")

    def set_clock(self) -> None:
        """A machine that goes on from its memory has the time of when that was written."""
        self._ssh(f"date -s @{time.time():.3f}", stdout=subprocess.DEVNULL)

    def write_memory(self, path: Path) -> None:
        """Stops it: of one that runs, emulation misses some of the memory that changes meanwhile
        (seen: a kernel that hung for ever wherever it went on from that). Raises MachineError."""
        self._ssh("systemctl is-system-running --wait; sync", stdout=subprocess.DEVNULL)
        self._ssh_end()
        try:
            with Monitor(self._scratch / "qmp") as monitor:
                monitor.ask("stop")
                monitor.ask("migrate", uri=f"exec:cat > {shlex.quote(str(path))}")
                while (status := monitor.ask("query-migrate").get("status")) != "completed":
                    if status in ("failed", "cancelled") or time.monotonic() > self._deadline:
                        raise MonitorError(str(status))
                    time.sleep(0.2)
                monitor.ask("quit")
        except MonitorError as error:
            what = f"its memory could not be written: {error}"
            raise MachineError(what, EXIT_NOT_UP) from error
        self._qemu.wait(30)

    def run(self, command: str) -> int:
        """Its exit status; its output goes where this program's does."""
        return self._ssh(f"cd {HOME} && {command}", stdin=subprocess.DEVNULL)

    def ask(self, command: str) -> str:
        """What it prints. Raises MachineError where it fails."""
        with tempfile.TemporaryFile() as said:
            status = self._ssh(command, stdin=subprocess.DEVNULL, stdout=said)
            said.seek(0)
            if status:
                raise MachineError(f"{command}: exit status {status}", EXIT_NOT_UP)
            return said.read().decode(errors="replace")

    def lose_power(self) -> None:
        """Between two instructions. Comes back with what its disk has. Raises MachineError."""
        try:
            with Monitor(self._scratch / "qmp") as monitor:
                monitor.ask("set-action", reboot="reset")
                monitor.ask("system_reset")
        except MonitorError as error:
            raise MachineError(f"its power could not be taken: {error}", EXIT_NOT_UP) from error
        self._ssh_end()
        started = time.monotonic()
        self.wait_until_up()
        print(f"machine: up again after {time.monotonic() - started:.0f} s", flush=True)

    def end(self) -> None:
        self._qemu.terminate()
        try:
            self._qemu.wait(10)
        except subprocess.TimeoutExpired:
            self._qemu.kill()
            self._qemu.wait()

    def _ssh_end(self) -> None:
        """The connection that the others share: the machine's memory would remember it."""
        control = ["ssh", "-F", "none", "-o", f"ControlPath={self._scratch}/ssh", "-O", "exit"]
        subprocess.run([*control, "root@127.0.0.1"], capture_output=True)
        time.sleep(2)

    def _ssh(self, command: str, **options: object) -> int:
        left = self._deadline - time.monotonic()
        argv = [
            "ssh", "-F", "none", "-i", str(self.key), "-p", str(self.ssh_port),
            "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
            "-o", f"UserKnownHostsFile={self._scratch}/hosts",
            "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=120", "-o", "ServerAliveInterval=30",
            "-o", "ServerAliveCountMax=20",
            "-o", "ControlMaster=auto", "-o", f"ControlPath={self._scratch}/ssh",
            "-o", "ControlPersist=yes", "root@127.0.0.1", command,
        ]  # fmt: skip
        try:
            return subprocess.run(argv, timeout=max(left, 0), **options).returncode  # type: ignore[call-overload, no-any-return]
        except subprocess.TimeoutExpired as late:
            raise MachineError("the time limit ran out", EXIT_LATE) from late


def _hardware(image: Path, port: int, *, isolated: bool) -> list[str]:
    """The machine, without where it starts and what it writes."""
    restrict = "on" if isolated else "off"
    # The parent's death ends it, however the parent dies.
    return [
        "setpriv", "--pdeathsig", "KILL", _QEMU,
        "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(_PROCESSORS),
        "-m", str(_MEMORY_MEBIBYTES), "-display", "none", "-no-reboot",
        "-kernel", str(image / "vmlinuz"), "-initrd", str(image / "initrd"),
        "-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off quiet",
        "-drive", f"file={image / 'root.ext4'},format=raw,if=virtio",
        "-netdev", f"user,id=ssh,restrict={restrict},hostfwd=tcp:127.0.0.1:{port}-:22",
        "-device", "virtio-net-pci,netdev=ssh,romfile=", "-device", "virtio-rng-pci",
    ]  # fmt: skip


def _more_nics(count: int) -> list[str]:
    words = []
    for number in range(count):
        words += ["-netdev", f"user,id=rail{number},restrict=on"]
        words += ["-device", f"virtio-net-pci,netdev=rail{number},romfile="]
    return words


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _greets(port: int) -> bool:
    """qemu itself takes the connection; only the greeting is the machine's."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as probe:
            return probe.recv(4) == b"SSH-"
    except OSError:
        return False


@contextmanager
def machine(
    image: Path,
    limit_seconds: float,
    *,
    memory: Path | None = None,
    preparing: bool = False,
    isolated: bool = True,
    nics: int = 0,
) -> Iterator[Machine]:
    """Up. Raises MachineError."""
    with tempfile.TemporaryDirectory(prefix="placewire-kernel-") as scratch:
        running = Machine(
            image, Path(scratch), time.monotonic() + limit_seconds,
            memory=memory, preparing=preparing, isolated=isolated, nics=nics,
        )  # fmt: skip
        try:
            started = time.monotonic()
            running.wait_until_up()
            print(f"machine: up after {time.monotonic() - started:.0f} s", flush=True)
            yield running
        finally:
            running.end()


def memory_file(image: Path) -> Path:
    said = subprocess.run([_QEMU, "--version"], capture_output=True, text=True).stdout
    # Of a machine that stood still; earlier ones were written while it ran.
    return image / f"memory-{hashlib.sha256(b'stopped' + said.encode()).hexdigest()[:8]}"


def prepare(image: Path, limit_seconds: float) -> int:
    memory = memory_file(image)
    if memory.exists():
        print(f"machine: nothing to do: {memory}")
        return 0
    incomplete = memory.with_suffix(".incomplete")
    # The disk goes on from where this leaves it: what another version wrote is of no use any more.
    for former in image.glob("memory-*"):
        former.unlink()
    for _ in range(_PREPARATIONS):
        with machine(image, limit_seconds, preparing=True) as running:
            running.write_memory(incomplete)
        try:
            with machine(image, _PROOF_SECONDS, memory=incomplete) as proof:
                proof.ask("taskset -c 0 true && taskset -c 1 true && sync")
        except MachineError as error:
            incomplete.unlink()
            print(f"machine: nothing goes on from its memory: {error}", file=sys.stderr)
        else:
            incomplete.rename(memory)
            print(f"machine: its memory is {memory}, {memory.stat().st_size >> 20} MiB")
            return 0
    print("machine: without its memory every run boots", file=sys.stderr)
    return 0


def run(image: Path, limit_seconds: float, command: str, *, boot: bool) -> int:
    memory = memory_file(image)
    known = None if boot or not memory.exists() else memory
    with machine(image, limit_seconds, memory=known) as running:
        running.set_clock()
        running.install_code()
        return running.run(command)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="machine.py", description="Run a command on a stock Debian kernel, emulated by qemu."
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=1800,
        metavar="SECONDS",
        help="for all (default: %(default)s)",
    )
    parser.add_argument("--boot", action="store_true", help="boot, though it was prepared")
    parser.add_argument("--prepare", action="store_true", help="boot once, and keep the memory")
    parser.add_argument("command", nargs="*", help="after --; runs in the checkout, as root")
    options = parser.parse_args(arguments)
    # So that what is under way is ended in its order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        image = image_directory()
        if options.prepare:
            return prepare(image, options.limit)
        if not options.command:
            parser.error("no command")
        return run(image, options.limit, shlex.join(options.command), boot=options.boot)
    except MachineError as error:
        print(f"machine: {error}", file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
