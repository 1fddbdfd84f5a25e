"""Connects to a server over SSH and checks its host key."""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import paramiko

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch.ssh_patience import Patience

# For each part of it: a connection, a greeting, keys, each key that may let us in.
_CONNECT_SECONDS = 10.0
_KEEPALIVE_SECONDS = 5
# How long what we send may have no answer before the connection is lost: a question to a server
# ends then. TCP alone would notice only after a quarter of an hour that a server is gone.
LOST_SECONDS = 20.0
# What paramiko says where a server accepts a connection and is silent then.
_SILENCE = ("timeout", "timed out", "protocol banner")
# It also says so where the server hung up.
_NO_SESSION = "no existing session"

# Placewire reports paramiko's errors itself, with a remedy.
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Login:
    """user: None for the user of this process. key, known_hosts: files; None for ssh's own."""

    user: str | None = None
    port: int = 22
    key: Path | None = None
    known_hosts: Path | None = None


def connected(
    name: str,
    address: str,
    login: Login,
    patience: Patience,
    lost_seconds: float = LOST_SECONDS,
) -> paramiko.SSHClient:
    """lost_seconds: how long the network in between may carry nothing before the connection ends.
    Raises LaunchFailed, which says what hinders it and what to do."""
    client, where = paramiko.SSHClient(), f"{name} ({address}, port {login.port})"
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    begun = time.monotonic()

    def failed(what: str, remedy: str) -> LaunchFailed:
        return LaunchFailed(what, where=where, remedy=remedy)

    try:
        _load_host_keys(client, where, login)
        stream = socket.create_connection((address, login.port), _CONNECT_SECONDS)
        patience.covers(stream)
        lost_milliseconds = round(lost_seconds * 1000)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, lost_milliseconds)
        client.connect(
            address,
            login.port,
            login.user,
            key_filename=None if login.key is None else str(login.key),
            allow_agent=login.key is None,
            look_for_keys=login.key is None,
            timeout=_CONNECT_SECONDS,
            banner_timeout=_CONNECT_SECONDS,
            auth_timeout=_CONNECT_SECONDS,
            sock=stream,
        )
    except paramiko.BadHostKeyException as error:
        known_as = address if login.port == 22 else f"[{address}]:{login.port}"
        raise failed(
            "its SSH host key is not the known one: somebody may intercept the connection, or "
            "the server was installed anew",
            f"ask who runs it; then `ssh-keygen -R {known_as}` and add the new key",
        ) from error
    except paramiko.AuthenticationException as error:
        if patience.is_over:
            raise no_answer(where, patience.seconds) from error
        if tells_of_silence(error, time.monotonic() - begun):
            raise no_answer(where, _CONNECT_SECONDS) from error
        raise failed(
            f"SSH refuses {login.user or 'the user of this process'}: {error}",
            "name the user and a key that it accepts (launch.user, launch.key), or load the "
            "key into ssh-agent",
        ) from error
    except (paramiko.SSHException, EOFError) as error:
        if patience.is_over:
            raise no_answer(where, patience.seconds) from error
        if tells_of_silence(error, time.monotonic() - begun):
            raise no_answer(where, _CONNECT_SECONDS) from error
        raise failed(*_not_let_in(str(error), address, login)) from error
    except OSError as error:
        if patience.is_over:
            raise no_answer(where, patience.seconds) from error
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
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(_KEEPALIVE_SECONDS)
    return client


def _load_host_keys(client: paramiko.SSHClient, where: str, login: Login) -> None:
    """Raises OSError, and LaunchFailed where a line of the file cannot be read."""
    try:
        if login.known_hosts is None:
            client.load_system_host_keys()
        else:
            client.load_host_keys(str(login.known_hosts))
    except OSError:
        raise
    except Exception as error:  # Of a byte that is no UTF-8, or of a damaged key.
        file = login.known_hosts or "~/.ssh/known_hosts"
        raise LaunchFailed(
            f"{file}, which has its SSH host key, cannot be read: {type(error).__name__}: {error}",
            where=where,
            remedy="correct or remove that line, or name a file with only the plan's servers in "
            "launch.known_hosts",
        ) from error


def _not_let_in(said: str, address: str, login: Login) -> tuple[str, str]:
    """Returns what hinders it and what to do. said: by paramiko."""
    if "not found in known_hosts" in said:
        return (
            "its SSH host key is not known",
            f"compare its fingerprint (`ssh-keyscan -p {login.port} {address} | "
            "ssh-keygen -lf -`), then add what ssh-keyscan prints to "
            f"{login.known_hosts or '~/.ssh/known_hosts'}",
        )
    if _NO_SESSION in said.lower():
        said = "its sshd ended the connection, as after too many keys"
    return (
        f"SSH does not let us in: {said}",
        "name a user and a key that it accepts (launch.user, launch.key); its sshd's log says more",
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


def no_answer(where: str, seconds: float) -> LaunchFailed:
    return LaunchFailed(
        f"SSH gave no answer within {seconds:g} s",
        where=where,
        remedy="look whether `ssh` by hand runs a command there (`ssh SERVER true`): its sshd may "
        "be frozen, or what the user's login shell does at its start (~/.bashrc, ~/.profile) may "
        "hang",
    )


def tells_of_silence(error: Exception, passed_seconds: float) -> bool:
    """Whether the server was silent. passed_seconds: since the connection was begun."""
    said = str(error).lower()
    if _NO_SESSION in said:
        return passed_seconds >= _CONNECT_SECONDS
    return any(words in said for words in _SILENCE)
