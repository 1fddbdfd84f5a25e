"""Which keys a server is offered, in which order, and what is said where it takes none."""

from __future__ import annotations

import getpass
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import paramiko
import pytest

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch import ssh_keys
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import SshServer
from placewire.controller.launch.ssh_keys import Held, Offered, public_parts
from tests.controller.launch.ssh_stage import ADDRESS
from tests.controller.launch.sshd import Keys


def make(file: Path, kind: str = "ed25519", passphrase: str = "") -> bytes:
    """Returns the public part."""
    words = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(file)]
    subprocess.run(words, check=True)
    (public,) = public_parts(file)
    return public


def offered(
    files: Sequence[Path], held: Sequence[bytes], *, only_files: bool = True
) -> list[tuple[bool, bytes]]:
    """(whether ssh-agent signs, the public part) of each key."""
    agent = object.__new__(paramiko.Agent)  # It would dial.
    keys = [paramiko.AgentKey(agent, blob) for blob in held]
    ours = Offered("bob", files, uses_agent=True, only_files=only_files)
    return [(isinstance(key, paramiko.AgentKey), key.asbytes()) for key in ours.keys(lambda: keys)]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_public_part_is_in_either_file(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "key"
    public = make(file, kind, "a passphrase")
    file.with_suffix(".pub").rename(tmp_path / "moved.pub")
    assert public_parts(file) == {public} == public_parts(tmp_path / "moved.pub")
    file.write_text("junk")
    assert public_parts(file) == public_parts(tmp_path / "none") == set()


def test_ssh_agent_has_the_keys_that_files_do_not_give(tmp_path: Path) -> None:
    plain, locked, absent, other = (tmp_path / name for name in ("a", "b", "c", "d"))
    publics = {file: make(file) for file in (plain, absent, other)}
    publics[locked] = make(locked, "ecdsa", "a passphrase")
    absent.unlink()
    files, held = [plain, locked, absent], [publics[other], *publics.values()]
    named = [(False, publics[plain]), (True, publics[locked]), (True, publics[absent])]
    assert offered(files, held) == named
    assert offered(files, held, only_files=False)[:3] == named
    assert {key for _, key in offered(files, held, only_files=False)[3:]} == {publics[other]}
    assert offered(files, []) == [(False, publics[plain])]


def test_ssh_agent_is_not_asked_where_a_file_gives_the_key(tmp_path: Path) -> None:
    def asked() -> Sequence[paramiko.AgentKey]:
        raise AssertionError("asked")

    make(tmp_path / "key")
    ours = Offered("bob", [tmp_path / "key"], uses_agent=True, only_files=True)
    assert len(list(ours.keys(asked))) == 1


@pytest.mark.parametrize(
    "error", [paramiko.SSHException("is ill"), OSError("is ill"), TimeoutError("is ill")]
)
def test_an_ssh_agent_that_does_not_answer_hinders_no_file(
    tmp_path: Path, error: Exception
) -> None:
    def asked() -> Sequence[paramiko.AgentKey]:
        asked_when.append(len(given))
        raise error

    asked_when: list[int] = []
    given: list[paramiko.PKey] = []
    locked, *plain = (tmp_path / name for name in ("a", "b", "c"))
    make(locked, passphrase="a passphrase")
    publics = [make(file) for file in plain]
    ours = Offered("bob", [locked, *plain], uses_agent=True, only_files=False)
    for key in ours.keys(asked):
        given.append(key)
    assert [key.asbytes() for key in given] == publics and asked_when == [2]
    assert untried(ours) == [
        "keys of ssh-agent, which is ill",
        f"{locked}, which needs a passphrase",
    ]


def untried(ours: Offered) -> list[str]:
    return ours._unusable


def test_what_is_said_of_ssh_agent_is_known(tmp_path: Path) -> None:
    """A public part that is named besides its private file is no key that was not tried."""
    key, locked, junk = (tmp_path / name for name in ("key", "locked", "junk"))
    make(key)
    make(locked, passphrase="a passphrase")
    junk.write_text("junk")
    files = [Path(f"{key}.pub"), key, locked, Path(f"{locked}.pub"), junk]
    no_key = f"{junk}, which is no private key that can be used from its file"
    cases: list[tuple[Held, str]] = [(list, ", and is not in ssh-agent"), (lambda: None, "")]
    for held, more in cases:
        ours = Offered("bob", files, uses_agent=True, only_files=True)
        assert len(list(ours.keys(held))) == 1
        assert untried(ours) == [f"{locked}, which needs a passphrase{more}", no_key]


def says_hello(login: Login) -> bool:
    return SshServer("s1", ADDRESS, login).run("echo hello") == (0, "hello\n", "")


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ssh-agent of this test's. The folder's name is short, as that of a socket must be."""
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as folder:
        path = Path(folder) / "agent"
        words = ["ssh-agent", "-D", "-a", str(path)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as run:
            try:
                deadline = time.monotonic() + 60
                while not path.exists():
                    assert run.poll() is None, "ssh-agent has ended"
                    assert time.monotonic() < deadline, "ssh-agent makes no socket"
                    time.sleep(0.01)
                monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
                yield path
            finally:
                run.terminate()


@pytest.mark.network
def test_a_key_with_a_passphrase_signs_from_ssh_agent(
    login: Login, keys: Keys, agent: Path, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(keys.user.read_bytes())
    locked.chmod(0o600)
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(locked)]
    subprocess.run(change, check=True)
    with_it = Login(getpass.getuser(), login.port, locked, login.known_hosts)
    with pytest.raises(LaunchFailed) as failed:
        says_hello(with_it)
    assert f"{locked}, which needs a passphrase, and is not in ssh-agent" in failed.value.what
    assert "ssh-agent" in failed.value.remedy
    subprocess.run(["ssh-add", "-q", str(keys.user)], check=True)
    assert says_hello(with_it)


@pytest.mark.network
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_refused_key_is_said_to_be_refused(login: Login, tmp_path: Path, kind: str) -> None:
    make(tmp_path / "key", kind)
    refused = Login(getpass.getuser(), login.port, tmp_path / "key", login.known_hosts)
    with pytest.raises(LaunchFailed, match=r"SSH refuses .*: Authentication failed\.\n"):
        says_hello(refused)


@pytest.mark.network
def test_a_file_that_is_no_key_is_named(login: Login, tmp_path: Path) -> None:
    file = tmp_path / "junk"
    file.write_text("junk")
    junk = Login(getpass.getuser(), login.port, file, login.known_hosts)
    with pytest.raises(LaunchFailed, match=f"{re.escape(str(file))}, which is no private key that"):
        says_hello(junk)


@contextmanager
def sick_agent(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> Iterator[None]:
    """answer: to the first question; b"" for none."""
    with (
        tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(f"{folder}/agent")
        listener.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", f"{folder}/agent")

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)
                while connection.recv(4096):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        yield


@pytest.mark.network
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", r"gave no answer within 0\.2 s"),
        (b"\0\0\0\1\5", r"does not list them \(could not get keys from ssh-agent\)"),
    ],
)
def test_a_sick_ssh_agent_is_named(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, words: str
) -> None:
    if not answer:
        monkeypatch.setattr(ssh_keys, "_AGENT_SECONDS", 0.2)
    make(tmp_path / "locked", passphrase="secret")
    locked = Login(getpass.getuser(), login.port, tmp_path / "locked", login.known_hosts)
    with (
        sick_agent(monkeypatch, answer),
        pytest.raises(LaunchFailed, match=f"no key to offer: keys of ssh-agent, which {words}; "),
    ):
        says_hello(locked)
