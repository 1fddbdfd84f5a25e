"""Connects to a server over SSH and checks its host key."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import paramiko

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.local import file_in_memory
from placewire.controller.launch.ssh_config import Destination, destination_of
from placewire.controller.launch.ssh_keys import Offered
from placewire.controller.launch.ssh_patience import Patience
from placewire.controller.launch.ssh_proxy import Proxy, proxy_in_turn

# For each part of it: a connection, a greeting, keys, each key that may let us in.
_CONNECT_SECONDS = 10.0
# For a greeting through a proxy, which connects to jump hosts before.
_PROXY_SECONDS = 30.0
_KEEPALIVE_SECONDS = 5
# How long what we send may have no answer before the connection is lost: a question to a server
# ends then. TCP alone would notice only after a quarter of an hour that a server is gone.
LOST_SECONDS = 20.0
# What paramiko says where a server accepts a connection and is silent then.
_SILENCE = ("timeout", "timed out", "protocol banner")
# It also says so where the server hung up.
_NO_SESSION = "no existing session"

_NAME_A_KEY = (
    "name the user and a key that it accepts (launch.user and launch.key, or User and IdentityFile "
    "in ~/.ssh/config), or load the key into ssh-agent"
)

# Placewire reports paramiko's errors itself, with a remedy.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Login:
    """What the plan says. key, known_hosts: files. None: as ssh itself would do it."""

    user: str | None = None
    port: int | None = None
    key: Path | None = None
    known_hosts: Path | None = None


def connected(
    name: str,
    address: str,
    login: Login,
    patience: Patience,
    lost_seconds: float = LOST_SECONDS,
) -> paramiko.SSHClient:
    """lost_seconds: how long the network in between may carry nothing before the connection ends,
    unless a proxy carries it. Raises LaunchFailed, which says what hinders it and what to do."""
    to = destination_of(
        name, address,
        user=login.user, port=login.port, key=login.key, known_hosts=login.known_hosts,
    )  # fmt: skip
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        _connect(client, f"{name} ({to.host}, port {to.port})", to, patience, lost_seconds)
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(_KEEPALIVE_SECONDS)
    except BaseException:
        client.close()  # A proxy ends with it.
        raise
    return client


def _connect(
    client: paramiko.SSHClient,
    where: str,
    to: Destination,
    patience: Patience,
    lost_seconds: float,
) -> None:
    """Raises LaunchFailed."""
    begun, proxy = time.monotonic(), None
    seconds = _PROXY_SECONDS if to.proxy else _CONNECT_SECONDS

    def failed(what: str, remedy: str) -> LaunchFailed:
        return LaunchFailed(what, where=where, remedy=remedy)

    def silent(for_seconds: float) -> LaunchFailed:
        return no_answer(where, for_seconds, "" if _is_heard(client) else to.proxy)

    try:
        _load_host_keys(client, where, to)
        proxy = proxy_in_turn(to.proxy, patience, where) if to.proxy else None
        stream = _over_tcp(to, lost_seconds) if proxy is None else proxy.connection
        patience.covers(stream)
        begun = time.monotonic()
        client.connect(
            *to.known_as,
            to.user,
            timeout=seconds,
            banner_timeout=seconds,
            auth_timeout=_CONNECT_SECONDS,
            sock=stream,
            auth_strategy=Offered(
                to.user, to.keys, uses_agent=to.uses_agent, only_files=to.only_keys
            ),
        )
    except paramiko.BadHostKeyException as error:
        raise failed(
            "its SSH host key is not the known one: somebody may intercept the connection, or "
            "the server was installed anew",
            f"ask who runs it; then `ssh-keygen -R {_known_as(to)}` and add the new key",
        ) from error
    except paramiko.AuthenticationException as error:
        if patience.is_over:
            raise silent(patience.seconds) from error
        if tells_of_silence(error, time.monotonic() - begun, _CONNECT_SECONDS):
            raise silent(_CONNECT_SECONDS) from error
        raise failed(f"SSH refuses {to.user}: {error}", _NAME_A_KEY) from error
    except (paramiko.SSHException, EOFError) as error:
        if patience.is_over:
            raise silent(patience.seconds) from error
        passed_seconds = time.monotonic() - begun
        # A proxy that ran so long is slow, whatever it said; one that failed ended sooner.
        ended_soon = passed_seconds < seconds
        if proxy is not None and ended_soon and (complaint := _unconnected(client, proxy)):
            raise failed(
                f"SSH cannot be reached through what ~/.ssh/config names: {complaint}",
                f"look whether `{to.proxy}` connects; it must ask nothing",
            ) from error
        if tells_of_silence(error, passed_seconds, seconds):
            raise silent(seconds) from error
        raise failed(*_not_let_in(str(error), to)) from error
    except OSError as error:
        if patience.is_over:
            raise silent(patience.seconds) from error
        raise failed(
            f"SSH cannot be reached: {error}",
            "look at its management address, its sshd and the network in between",
        ) from error
    except LaunchFailed:
        raise
    except Exception as error:  # paramiko raises whatever it met in a key, or in what a server sent
        raise failed(
            f"SSH cannot be spoken with it: {type(error).__name__}: {error}",
            "look at launch.key, whether it is a private key, and at what listens at that port",
        ) from error


def _over_tcp(to: Destination, lost_seconds: float) -> socket.socket:
    """Raises OSError."""
    stream = socket.create_connection((to.host, to.port), _CONNECT_SECONDS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(lost_seconds * 1000))
    return stream


def _load_host_keys(client: paramiko.SSHClient, where: str, to: Destination) -> None:
    """Raises OSError, and LaunchFailed where a line of a file cannot be read."""
    files = {file: file.read_bytes().splitlines() for file in to.known_hosts}
    rows = [line.split() for lines in files.values() for line in lines]
    revoked = {row[3] for row in rows if row[:1] == [b"@revoked"] and len(row) > 3}
    for file, lines in files.items():
        try:
            # paramiko takes a mark, as @cert-authority, for the name of a host.
            kept = b"\n".join(
                line for line in lines if line[:1] != b"@" and not revoked & {*line.split()[2:3]}
            )
            with file_in_memory("known_hosts", kept) as descriptor:
                client.load_system_host_keys(f"/dev/fd/{descriptor}")
        except OSError:
            raise
        except Exception as error:  # Of a byte that is no UTF-8, or of a damaged key.
            raise LaunchFailed(
                f"{file}, which has SSH host keys, cannot be read: {type(error).__name__}: {error}",
                where=where,
                remedy="correct or remove that line, or name a file with only the plan's servers "
                "in launch.known_hosts",
            ) from error


def _known_as(to: Destination) -> str:
    host, port = to.known_as
    return host if port == 22 else f"[{host}]:{port}"


def _is_heard(client: paramiko.SSHClient) -> bool:
    """Whether any sshd greeted us."""
    transport = client.get_transport()
    return transport is not None and bool(transport.remote_version)


def _unconnected(client: paramiko.SSHClient, proxy: Proxy) -> str:
    """What the proxy says where no sshd was heard through it."""
    return "" if _is_heard(client) else proxy.complaint()


def _not_let_in(said: str, to: Destination) -> tuple[str, str]:
    """Returns what hinders it and what to do. said: by paramiko."""
    if "not found in known_hosts" in said:
        return "its SSH host key is not known", _make_known(to)
    if _NO_SESSION in said.lower():
        said = "its sshd ended the connection, as after too many keys"
    return f"SSH does not let us in: {said}", f"{_NAME_A_KEY}; its sshd's log says more"


def _make_known(to: Destination) -> str:
    file = to.own_known_hosts
    if file is None or file == Path(os.devnull):
        return (
            f"`UserKnownHostsFile {file or 'none'}` in ssh's configuration (~/.ssh/config) hides "
            "host keys that were accepted: name a file there that has them, or one in "
            "launch.known_hosts"
        )
    if to.proxy or to.known_as != (to.host, to.port):
        return (
            f"{file} must have it for {_known_as(to)}: compare what `ssh-keygen -lf "
            "/etc/ssh/ssh_host_ed25519_key.pub` prints on that server with what `ssh` by hand "
            "asks, then accept it there"
        )
    return (
        f"compare its fingerprint (`ssh-keyscan -p {to.port} {to.host} | ssh-keygen -lf -`), then "
        f"add what ssh-keyscan prints to {file}"
    )


def socket_of(client: paramiko.SSHClient) -> socket.socket:
    """Raises EOFError where the connection is closed."""
    transport = client.get_transport()
    if transport is None:
        raise EOFError("it was closed")
    return cast("socket.socket", transport.sock)


def is_open(client: paramiko.SSHClient) -> bool:
    transport = client.get_transport()
    return transport is not None and transport.is_active()


def no_answer(where: str, seconds: float, proxy: str = "") -> LaunchFailed:
    """proxy: the command through which no sshd was heard."""
    if proxy:
        return LaunchFailed(
            f"SSH gave no answer within {seconds:g} s through what ~/.ssh/config names",
            where=where,
            remedy=f"look whether `{proxy}` prints a line that begins with SSH-: a jump host, or "
            "the server behind it, may be down, slow or frozen; it must ask nothing",
        )
    return LaunchFailed(
        f"SSH gave no answer within {seconds:g} s",
        where=where,
        remedy="look whether `ssh` by hand runs a command there (`ssh SERVER true`): its sshd may "
        "be frozen, or what the user's login shell does at its start (~/.bashrc, ~/.profile) may "
        "hang",
    )


def tells_of_silence(error: Exception, passed_seconds: float, limit_seconds: float) -> bool:
    """Whether the server was silent. passed_seconds: since the connection was begun.
    limit_seconds: for how long an answer is waited for."""
    said = str(error).lower()
    if _NO_SESSION in said:
        return passed_seconds >= limit_seconds
    return any(words in said for words in _SILENCE)
