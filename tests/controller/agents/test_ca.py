"""Tests, over real sockets, which certificates the controller and the agents accept."""

from __future__ import annotations

import asyncio
import fcntl
import os
import ssl
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import placewire.controller.agents.authority as authorities
from placewire.agent.connection.identity import new_key
from placewire.controller.agents import revocations
from placewire.controller.agents.authority import Authority, Issued, bearer_of, server_context
from placewire.controller.agents.private_files import write_private
from placewire.controller.agents.revocations import Bearer
from placewire.controller.errors import UsageError
from tests.controller.agents.dialling import client_context


async def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """The client's name as the server sees it. Raises what either side raises."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(bearer_of(writer.get_extra_info("peercert")).name)
        writer.write(b"welcome\n")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name), 60
        )
        try:
            # In TLS 1.3 a client learns only by reading that it was turned away.
            if await asyncio.wait_for(reader.readline(), 60) != b"welcome\n":
                raise ConnectionResetError("turned away")
        finally:
            writer.close()
    return seen[0]


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.load(directory / "ca")
        controller = self.issue("controller", "controller")
        self.server = server_context(self.authority.certificate_file, controller)

    def issue(self, name: str, kind: str, lifetime_seconds: float = 60) -> Issued:
        folder = self.directory / kind
        return self.authority.issue(name, kind, folder, lifetime_seconds=lifetime_seconds)  # type: ignore[arg-type]

    def dial(self, issued: Issued) -> ssl.SSLContext:
        return client_context(self.authority.certificate_file, issued)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_an_agent_is_who_its_certificate_says(site: Site) -> None:
    client = site.dial(site.issue("s1", "agent"))
    assert await handshake(site.server, client, "controller") == "s1"


async def test_certificates_have_all_that_python_asks_of_them_from_3_13_on(site: Site) -> None:
    client = site.dial(site.issue("s1", "agent"))
    for context in (site.server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    assert await handshake(site.server, client, "controller") == "s1"


async def test_another_authority_s_agent_is_turned_away(site: Site, tmp_path: Path) -> None:
    stranger = Authority.load(tmp_path / "other")
    issued = stranger.issue("s1", "agent", tmp_path / "x", lifetime_seconds=60)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await handshake(site.server, site.dial(issued), "controller")


async def test_an_agent_does_not_dial_another_authority_s_controller(
    site: Site, tmp_path: Path
) -> None:
    other = Site(tmp_path / "other")
    client = site.dial(site.issue("s1", "agent"))
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(other.server, client, "controller")


async def test_the_controller_must_have_the_expected_name(site: Site) -> None:
    client = site.dial(site.issue("s1", "agent"))
    with pytest.raises(ssl.SSLCertVerificationError, match=r"[Hh]ostname"):
        await handshake(site.server, client, "s2")


async def test_an_expired_certificate_is_turned_away(site: Site) -> None:
    client = site.dial(site.issue("s1", "agent", lifetime_seconds=-1))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await handshake(site.server, client, "controller")


async def test_no_certificate_no_entry(site: Site) -> None:
    client = ssl.create_default_context(cafile=str(site.authority.certificate_file))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await handshake(site.server, client, "controller")


async def test_an_agent_cannot_pose_as_the_controller(site: Site) -> None:
    posing = server_context(site.authority.certificate_file, site.issue("controller", "agent"))
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(posing, site.dial(site.issue("s1", "agent")), "controller")


async def test_a_controller_s_certificate_does_not_dial(site: Site) -> None:
    client = site.dial(site.issue("s1", "controller"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await handshake(site.server, client, "controller")


def test_a_private_file_is_on_disk_before_it_replaces_the_former(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    write_private(tmp_path / "key", b"secret")
    assert synced == [len(b"secret")] and (tmp_path / "key").read_bytes() == b"secret"


def test_the_authority_is_kept_and_its_files_are_private(tmp_path: Path) -> None:
    first = Authority.load(tmp_path / "ca")
    before = first.certificate_file.read_bytes()
    issued = Authority.load(tmp_path / "ca").issue(
        "s1", "agent", tmp_path / "s1", lifetime_seconds=60
    )
    assert first.certificate_file.read_bytes() == before
    for file in (tmp_path / "ca/authority.key", issued.key_file, issued.certificate_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_first_commands_at_once_make_one_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def create(
        certificate_file: Path,
        key_file: Path,
        really: Callable[[Path, Path], None] = authorities._create,
    ) -> None:
        made.append(certificate_file)
        time.sleep(0.1)  # Meanwhile the others look whether it is there.
        really(certificate_file, key_file)

    monkeypatch.setattr(authorities, "_create", create)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(Authority.load, [tmp_path / "ca"] * 4))
    assert len(made) == 1 and len({one.sha256 for one in found}) == 1


def test_nobody_waits_without_end_for_a_stopped_holder_of_the_authority_s_lock(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that waited would hear neither agents nor Ctrl-C, and its leases would end."""
    monkeypatch.setattr(revocations, "_WAIT_SECONDS", 0.2)
    asked, bearer = new_key("s1").request_pem, Bearer("s1", "1", time.time())
    holder = os.open(site.directory / "ca" / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    fcntl.flock(holder, fcntl.LOCK_EX)
    goes_on = threading.Timer(5.0, os.close, [holder])
    goes_on.start()
    began = time.monotonic()
    with pytest.raises(UsageError, match="another process holds this lock"):
        site.authority.sign(asked, "s1", lifetime_seconds=60, renews=bearer)
    with pytest.raises(OSError, match="another process holds this lock"):
        site.authority.revocations.note_copied({"1", "2"}, "10.9.0.1", "10.9.0.2")
    assert time.monotonic() - began < 0.2, "a controller with leases does not wait at all"
    with pytest.raises(OSError, match="another process holds this lock"):
        site.authority.revocations.deny("s1")
    with pytest.raises(UsageError, match="another process holds this lock"):
        site.issue("s1", "agent")
    assert time.monotonic() - began < 5
    goes_on.join()
    assert site.authority.revocations.deny("s1") == 0
    assert site.authority.sign(asked, "s1", lifetime_seconds=60)


def test_a_key_that_is_not_the_certificate_s_is_refused(tmp_path: Path) -> None:
    for name in ("ca", "other"):
        Authority.load(tmp_path / name)
    (tmp_path / "ca/authority.key").write_bytes((tmp_path / "other/authority.key").read_bytes())
    with pytest.raises(UsageError, match="not the key of") as raised:
        Authority.load(tmp_path / "ca")
    assert "one backup" in raised.value.remedy


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_key_that_others_can_read_or_replace_is_refused(tmp_path: Path, mode: int) -> None:
    Authority.load(tmp_path / "ca")
    key = tmp_path / "ca/authority.key"
    key.chmod(mode)
    with pytest.raises(UsageError, match=f"has mode {mode:04o}") as raised:
        Authority.load(tmp_path / "ca")
    assert raised.value.where == str(key) and f"`chmod 600 {key}`" in raised.value.remedy
    assert "keeps no such mode" in raised.value.remedy and "--state-dir" in raised.value.remedy
    subprocess.run(["chmod", "600", str(key)], check=True)
    Authority.load(tmp_path / "ca")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    Authority.load(tmp_path / "ca")
    key = tmp_path / "ca/authority.key"
    os.chown(key, 65534, -1)
    with pytest.raises(UsageError, match="another user's \\(65534\\)") as raised:
        Authority.load(tmp_path / "ca")
    assert f"`chown 0 {key}`" in raised.value.remedy
    os.chown(key.parent, 65534, -1)
    Authority.load(tmp_path / "ca")  # Its folder's owner is the operator, as with sudo.
