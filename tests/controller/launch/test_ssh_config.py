"""What a plan leaves out is as ssh's own configuration says: the system's ssh reads it."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from placewire.controller.errors import LaunchFailed
from placewire.controller.launch import ssh_config, ssh_connecting, ssh_proxy
from placewire.controller.launch.ssh_config import Destination, destination_of
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import SshServer
from tests.controller.launch.ssh_stage import ADDRESS
from tests.controller.launch.sshd import Keys
from tests.free_port import free_port

SERVER = "192.0.2.1"  # Of no network.
SAYS_NOTHING = Login()

Configured = Callable[[str], Path]


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Configured:
    """Writes what ssh reads in place of this machine's files."""

    def configure(text: str) -> Path:
        file = tmp_path / "ssh_config"
        file.write_text(text)
        monkeypatch.setattr(ssh_config, "_SSH", ("ssh", "-F", str(file)))
        return file

    return configure


def found(login: Login = SAYS_NOTHING) -> Destination:
    return destination_of(
        "s1", SERVER,
        user=login.user, port=login.port, key=login.key, known_hosts=login.known_hosts,
    )  # fmt: skip


def test_without_a_configuration_the_address_is_the_server(configured: Configured) -> None:
    configured("")
    to = found()
    assert (to.host, to.port, to.user, to.proxy) == (SERVER, 22, getpass.getuser(), "")
    assert to.known_as == (SERVER, 22) and to.uses_agent and not to.only_keys
    assert to.own_known_hosts == Path("~/.ssh/known_hosts").expanduser()


def test_what_the_plan_says_wins(configured: Configured, tmp_path: Path) -> None:
    for name in ("s1.lan-key", "known", "mine", "mine-known"):
        (tmp_path / name).touch()
    configured(
        f"Host 192.0.2.*\n HostName s1.lan\n Port 2200\n User bob\n IdentityFile {tmp_path}/none\n"
        f" IdentityFile {tmp_path}/%h-key\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {tmp_path}/known {tmp_path}/none\n GlobalKnownHostsFile none\n"
    )
    assert found() == Destination(
        "s1.lan", 2200, "bob", "", ("s1.lan", 2200), (tmp_path / "s1.lan-key",), True, True,
        (tmp_path / "known",), tmp_path / "known",
    )  # fmt: skip
    to = found(Login("trainer", 22, tmp_path / "mine", tmp_path / "mine-known"))
    assert (to.host, to.port, to.user) == ("s1.lan", 22, "trainer")
    assert (to.keys, to.known_hosts) == ((tmp_path / "mine",), (tmp_path / "mine-known",))
    assert to.only_keys and to.own_known_hosts == tmp_path / "mine-known"


def test_names_of_files_have_spaces_and_tokens(configured: Configured, tmp_path: Path) -> None:
    """A key may be in ssh-agent alone, and a file of host keys is made when it is needed."""
    for name in ("my known", "my key.pub", f"{getpass.getuser()}-alias-{SERVER}"):
        (tmp_path / name).touch()
    configured(
        f'HostKeyAlias alias\nUserKnownHostsFile "{tmp_path}/none of %k" "{tmp_path}/my known"\n'
        f'GlobalKnownHostsFile none\nIdentityFile "{tmp_path}/my key"\n'
        f"IdentityFile {tmp_path}/%u-%k-%h\nIdentityFile {tmp_path}/%C-%j-%L-%l\n"
    )
    to = found()
    assert to.keys == (tmp_path / "my key", tmp_path / f"{getpass.getuser()}-alias-{SERVER}")
    assert to.known_hosts == (tmp_path / "my known",)
    assert to.own_known_hosts == tmp_path / "none of alias"


def test_a_key_whose_name_cannot_be_told_hinders_no_other(
    configured: Configured, tmp_path: Path
) -> None:
    (tmp_path / "key").touch()
    configured(f"IdentityFile {tmp_path}/%q\nIdentityFile {tmp_path}/key\n")
    assert found().keys == (tmp_path / "key",)
    assert found(Login(key=tmp_path / "mine")).keys == (tmp_path / "mine",)


def test_an_included_file_counts_and_so_does_a_match(
    configured: Configured, tmp_path: Path
) -> None:
    (tmp_path / "more").write_text('Match user trainer exec "true"\n Port 2201\n')
    configured(f"Include {tmp_path}/more\nPort 2202\nHostKeyAlias first\n")
    assert found(Login("trainer")).port == 2201
    to = found(Login("other"))
    assert (to.port, to.known_as) == (2202, ("first", 22))


@pytest.mark.parametrize(
    ("jumps", "words"),
    [
        ("jump", "-W '[192.0.2.1]:22' -- ssh://jump"),
        ("a@one:2200,ssh://two:2201", "-J a@one:2200 -W '[192.0.2.1]:22' -- ssh://two:2201"),
        ("none", ""),
    ],
)
def test_ssh_itself_goes_through_jump_hosts(configured: Configured, jumps: str, words: str) -> None:
    file = configured(f"Host 192.0.2.1\n ProxyJump {jumps}\n")
    assert found().proxy == (
        f"ssh -F {file} -o BatchMode=yes -o LogLevel=INFO {words}" if words else ""
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Port 22\nNoSuchOption yes\n", "line 2: Bad configuration option: nosuchoption"),
        ("ProxyCommand nc %q\n", "%q in 'nc %q' is not known here"),
    ],
)
def test_what_cannot_be_used_is_named(configured: Configured, text: str, words: str) -> None:
    file = configured(text)
    with pytest.raises(LaunchFailed) as failed:
        found()
    assert words in failed.value.what and failed.value.where == "s1"
    assert str(file) in failed.value.what or "line" not in words


def test_a_configuration_that_takes_too_long_is_named(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_config, "_LONGEST_SECONDS", 0.2)
    configured('Match exec "sleep 5"\n Port 1\n')
    with pytest.raises(LaunchFailed, match=r"did not read it within 0\.2 s: .*Match exec"):
        found()


def test_a_machine_without_ssh_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_config, "_SSH", ("/no/such/ssh",))
    with pytest.raises(LaunchFailed, match="this machine has no ssh"):
        found()


def host(name: str, login: Login, *more: str) -> str:
    lines = [
        f"Host {name}", f"HostName {ADDRESS}", f"Port {login.port}", f"User {login.user}",
        f"IdentityFile {login.key}", "IdentitiesOnly yes", "GlobalKnownHostsFile none", *more,
    ]  # fmt: skip
    return "\n ".join(lines) + "\n"


def says_hello(login: Login = SAYS_NOTHING) -> bool:
    return SshServer("s1", SERVER, login).run("echo hello") == (0, "hello\n", "")


@pytest.mark.network
def test_a_server_is_reached_as_the_configuration_says(
    login: Login, configured: Configured
) -> None:
    configured(host(SERVER, login, f"UserKnownHostsFile {login.known_hosts}"))
    assert says_hello()


@pytest.mark.network
def test_host_keys_of_the_whole_machine_count_and_no_other_is_taken(
    login: Login, configured: Configured, tmp_path: Path
) -> None:
    rows = ("StrictHostKeyChecking no", "UserKnownHostsFile /dev/null")
    configured(host(SERVER, login, *rows))
    with pytest.raises(LaunchFailed, match=r"(?s)host key is not known.*KnownHostsFile /dev/null"):
        says_hello()
    only_global = host(SERVER, login, *rows).replace(
        "GlobalKnownHostsFile none", f"GlobalKnownHostsFile {login.known_hosts}"
    )
    configured(only_global)
    assert says_hello()


@pytest.mark.network
def test_a_revoked_host_key_is_refused_and_a_mark_hinders_nothing(
    login: Login, configured: Configured, tmp_path: Path
) -> None:
    assert login.known_hosts is not None
    _, kind, key = login.known_hosts.read_text().split()[:3]
    marked = tmp_path / "marked"
    configured(host(SERVER, login, f"UserKnownHostsFile {login.known_hosts} {marked}"))
    marked.write_text(f"@cert-authority *.lan {kind} {key}\n")
    assert says_hello()
    marked.write_text(f"@revoked * {kind} {key}\n")
    with pytest.raises(LaunchFailed, match="its SSH host key is not known"):
        says_hello()


@pytest.mark.network
def test_a_server_behind_a_jump_host_is_reached(login: Login, configured: Configured) -> None:
    known = f"UserKnownHostsFile {login.known_hosts}"
    configured(host(SERVER, login, known, "ProxyJump jump") + host("jump", login, known))
    assert says_hello()
    configured(
        host(SERVER, login, known, "ProxyJump jump")
        + host("jump", login, "UserKnownHostsFile /dev/null")
    )
    with pytest.raises(LaunchFailed) as failed:
        says_hello()
    assert "what ~/.ssh/config names: Host key verification failed." in failed.value.what
    assert "-W" in failed.value.remedy


@pytest.mark.network
def test_why_a_jump_host_does_not_reach_a_server_is_told(
    login: Login, configured: Configured, tmp_path: Path
) -> None:
    """The jump host's key, which is noted on the way, is not why."""
    noted = tmp_path / "noted"
    jump = host("jump", login, f"UserKnownHostsFile {noted}", "StrictHostKeyChecking accept-new")
    configured(f"Host {SERVER}\n HostName {ADDRESS}\n ProxyJump jump\n{jump}")
    with pytest.raises(LaunchFailed, match="Connection refused") as failed:
        says_hello(Login(port=free_port()))
    assert noted.exists() and "Permanently added" not in failed.value.what


def test_a_proxy_that_is_slow_is_named_whatever_it_says(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ssh_connecting, "_PROXY_SECONDS", 0.2)
    monkeypatch.setattr(ssh_proxy, "_TURN_SECONDS", 0.1)
    slow = tmp_path / "slow"
    slow.write_text("echo Warning >&2\nsleep 3\n")
    configured(f"ProxyCommand sh {slow}\n")
    with pytest.raises(LaunchFailed) as failed:
        says_hello()
    assert "no answer within 0.2 s through what ~/.ssh/config names" in failed.value.what
    assert f"`sh {slow}`" in failed.value.remedy and "bashrc" not in failed.value.remedy


@pytest.mark.network
def test_a_server_behind_a_command_is_reached(
    login: Login, keys: Keys, configured: Configured, tmp_path: Path
) -> None:
    """The command is told the port that the configuration has, and no address of this machine."""
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, select, socket, sys\n"
        f"there = socket.create_connection(({ADDRESS!r}, {login.port}))\n"
        f"if sys.argv[2] != '{login.port}': sys.exit('another port')\n"
        "while True:\n"
        "    for one in select.select([there, 0], [], [])[0]:\n"
        "        data = os.read(0, 65536) if one == 0 else there.recv(65536)\n"
        "        if not data: sys.exit()\n"
        "        there.sendall(data) if one == 0 else os.write(1, data)\n"
    )
    keys.know("s1.lan", login.port or 22)
    command = f"ProxyCommand {sys.executable} {relay} %h %p"
    known = f"UserKnownHostsFile {login.known_hosts}"
    text = host(SERVER, login, known, command).replace(f"HostName {ADDRESS}", "HostName s1.lan")
    configured(text)
    assert says_hello()
    with pytest.raises(LaunchFailed, match=r"through what ~/\.ssh/config names: another port"):
        says_hello(Login(port=free_port()))
