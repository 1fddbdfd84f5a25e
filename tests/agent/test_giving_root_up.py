"""Root that works in the agent's folder becomes its owner, and follows nothing that is put there.

The attacks run as root on files of their own, and change no network.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.state import Ledger, TakenOver
from placewire.agent.own_files import open_own, read_ordinary
from placewire.agent.privileges import UNIT_CAPABILITY, UNIT_GROUP, UNIT_UMASK, as_owner
from placewire.agent.reconcile.lease import Kept
from placewire.agent.store import (
    COPY_FILE,
    LOCK_FILE,
    STATE_FILE,
    DiskStore,
    read_kept,
    take_lock,
)
from tests.agent.agent_process import readable_python
from tests.agent.server_under_test import wait_for
from tests.agent.test_privileges import CAP_NET_ADMIN, UNIT

NOBODY = 65_534
KEPT = Kept(ledger=Ledger(owed=(TakenOver(nic="nic0", addresses=("10.7.0.1/24",)),)))
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives root up")


@pytest.fixture
def folder() -> Iterator[Path]:
    """An agent's folder, with a state, of a user without privileges."""
    above = Path(tempfile.mkdtemp(prefix="placewire-test-"))
    above.chmod(0o755)
    state = above / "state"
    store = DiskStore(state)
    store.save(KEPT)
    store.audit([{"event": "before"}])
    take_lock(state).close()
    for path in (state, *state.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    try:
        yield state
    finally:
        shutil.rmtree(above)


def give_up_as_root(folder: Path) -> subprocess.CompletedProcess[str]:
    """`agent restore --give-up`, which takes the lock, saves the state and writes to the audit log,
    from a folder that root alone may read."""
    config = AgentConfig(
        server="s1", controller_url="https://127.0.0.1:7440", certificate_file="/nowhere",
        key_file="/nowhere", authority_file="/nowhere", state_dir=str(folder), datapath="netdev",
        ovsdb_remote="unix:/nowhere", openvswitch_run_dir="/nowhere",
    )  # fmt: skip
    own = folder.parent / "of root"
    own.mkdir(mode=0o700)
    (own / "agent.json").write_text(config.model_dump_json())
    python, path = readable_python()
    return subprocess.run(
        [python, "-m", "placewire.agent.main", "restore", "--config", "agent.json",
         "--give-up=nic0"],
        cwd=own, env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip


@as_root
@pytest.mark.parametrize("name", [LOCK_FILE, "state.copy.part", "state.part", "audit.jsonl"])
def test_links_in_the_agents_folder_lead_root_nowhere(folder: Path, name: str) -> None:
    victim = folder.parent / "shadow"
    victim.write_text("root's own\n")
    victim.chmod(0o600)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    done = give_up_as_root(folder)
    status = victim.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 0, 0o600)
    assert victim.read_text() == "root's own\n"
    if name == "audit.jsonl":
        assert "given up" in done.stdout, "an undo is done, though it cannot be noted"
    else:
        assert done.returncode == 1
    assert "is no ordinary file" in done.stderr and name in done.stderr, done.stderr


@as_root
def test_root_works_in_the_agents_folder_as_its_owner(folder: Path) -> None:
    done = give_up_as_root(folder)
    assert done.returncode == 0, done.stderr
    assert "belongs to user nobody" in done.stderr and "10.7.0.1/24" in done.stdout
    assert read_kept(folder).ledger.owed == ()
    assert '"event": "given up"' in (folder / "audit.jsonl").read_text()
    assert {path.stat().st_uid for path in folder.iterdir()} == {NOBODY}
    assert stat.S_IMODE((folder / STATE_FILE).stat().st_mode) == 0o640


@as_root
def test_root_s_own_folder_is_worked_in_as_root(folder: Path) -> None:
    """A lab's."""
    for path in (folder, *folder.iterdir()):
        os.chown(path, 0, 0)
    done = give_up_as_root(folder)
    assert done.returncode == 0 and "belongs to user" not in done.stderr, done.stderr
    assert {path.stat().st_uid for path in folder.iterdir()} == {0}


@as_root
def test_the_owner_gets_what_the_unit_gives_and_nothing_else(folder: Path) -> None:
    words = [*as_owner(folder.stat()), "cat", "/proc/self/status"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert found["Uid"].split() == found["Gid"].split() == [str(NOBODY)] * 4
    assert "0" not in found["Groups"].split() and found["NoNewPrivs"] == "1"
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    assert [int(found[name], 16) for name in sets] == [1 << CAP_NET_ADMIN] * len(sets)


# Runs a command as `give_root_up` does, from a terminal that is root's.
AS_ROOT = """
import fcntl, os, sys, termios
from pathlib import Path
from placewire.agent.privileges import _run, as_owner
if os.isatty(0):
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
owner = as_owner(Path(sys.argv[1]).stat())
sys.exit(_run([*owner, *sys.argv[2:]], os.memfd_create("known")))
"""
# What of a terminal a process has.
PROBE = """
import os
found = [str(number) for number in (0, 1, 2) if os.isatty(number)]
try:
    os.close(os.open("/dev/tty", os.O_RDWR))
    found.append("/dev/tty")
except OSError:
    pass
print("has", found, flush=True)
"""


def as_root_of(folder: Path, *command: str, terminal: int | None = None) -> subprocess.Popen[bytes]:
    python, path = readable_python()
    words = [python if word == "python" else word for word in command]
    return subprocess.Popen(
        [python, "-c", AS_ROOT, str(folder), *words], start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}, cwd="/",
        stdin=terminal, stdout=subprocess.PIPE if terminal is None else terminal, stderr=terminal,
    )  # fmt: skip


@as_root
def test_the_owner_has_nothing_of_root_s_terminal(folder: Path) -> None:
    """Whoever has it reads what root types, and types for root (TIOCSTI)."""
    master, terminal = os.openpty()
    with as_root_of(folder, "python", "-c", PROBE, terminal=terminal) as process:
        os.close(terminal)
        said = b""
        with contextlib.suppress(OSError):  # Nobody has the terminal any longer.
            while data := os.read(master, 4096):
                said += data
    os.close(master)
    assert process.returncode == 0 and said.split() == [b"has", b"[]"], said


@as_root
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_signal_to_root_s_process_ends_the_owner_s(
    folder: Path, number: signal.Signals, code: int
) -> None:
    sleeping = ("sh", "-c", "echo $$; exec sleep 3600")
    with as_root_of(folder, *sleeping) as process:
        assert process.stdout is not None
        owner_s = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(60) == code
    wait_for(lambda: not Path(f"/proc/{owner_s}").exists(), "the owner's process to end")


def test_the_privileges_are_those_of_the_unit() -> None:
    assert UNIT["CapabilityBoundingSet"] == [f"CAP_{UNIT_CAPABILITY.upper()}"]
    assert UNIT["SupplementaryGroups"] == [UNIT_GROUP]
    assert UNIT["UMask"] == [f"{UNIT_UMASK:04o}"]


@pytest.mark.parametrize("what", ["link", "link to nothing", "pipe", "folder"])
def test_what_is_no_ordinary_file_is_not_opened(tmp_path: Path, what: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    state = tmp_path / "state"
    DiskStore(state).save(KEPT)
    if what == "link":
        elsewhere.write_text("somebody's")
    for path in (state / LOCK_FILE, state / COPY_FILE):
        path.unlink(missing_ok=True)
        if what == "pipe":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        else:
            path.symlink_to(elsewhere)
    for mode in ("rb", "ab", "w", "a+"):
        with pytest.raises(OSError, match=r"no ordinary file|directory"):
            open_own(state / COPY_FILE, mode)
    with pytest.raises(OSError, match=r"no ordinary file|directory"):
        take_lock(state)
    assert read_kept(state) == KEPT, "the other file is whole"
    assert elsewhere.exists() == (what == "link")
    assert what != "link" or elsewhere.read_text() == "somebody's"


@as_root
def test_another_user_s_file_in_the_agent_s_folder_is_not_used(folder: Path) -> None:
    """A second name of a file is no link, and has that file's owner."""
    victim = folder.parent / "shadow"
    victim.write_text("root's own\n")
    (folder / COPY_FILE).unlink()
    os.link(victim, folder / COPY_FILE)
    for mode in ("rb", "ab", "w", "a+"):
        with pytest.raises(OSError, match="is user root's in a folder of user nobody"):
            open_own(folder / COPY_FILE, mode)
    with pytest.raises(OSError, match="is user root's"):
        read_ordinary(folder / COPY_FILE)
    assert victim.read_text() == "root's own\n"


@as_root
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_root_follows_nothing_in_the_agent_s_folder_for_a_certificate(
    folder: Path, what: str
) -> None:
    pem = folder / "agent.pem"
    if what == "pipe":
        os.mkfifo(pem)
    else:
        pem.symlink_to("/etc/shadow")
    config = folder.parent / "agent.json"
    document = {
        "server": "s1", "controller_url": "https://127.0.0.1:7440", "certificate_file": str(pem),
        "key_file": str(pem), "authority_file": str(pem), "state_dir": str(folder),
    }  # fmt: skip
    config.write_text(json.dumps(document))
    python, path = readable_python()
    done = subprocess.run(
        [python, "-m", "placewire.agent.main", "certificate", "--config", config],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}, cwd="/",
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 1 and "is no ordinary file" in done.stderr, done.stderr


def test_a_link_in_one_s_own_folder_leads_to_a_certificate(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("it")
    (tmp_path / "agent.pem").symlink_to("elsewhere")
    assert read_ordinary(tmp_path / "agent.pem") == b"it"
