"""Whatever a server, its user or a file of keys says: it is a failure with the server's name, and
keeps nobody from undoing what is on it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import paramiko
import pytest

from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.own_runs import RANK, Run
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login, connected
from placewire.controller.launch.ssh_connection import InFolder, SshServer, Surroundings
from placewire.controller.launch.ssh_patience import Patience
from placewire.controller.story.left_ranks import end_left_ranks_or_say
from placewire.job.contract.specification import RankSpec, ScriptSpec
from tests.controller.story.test_left_ranks import said, tools

FOLDER = "/tmp/placewire-0123456789"
RUN = Run(RANK, "0" * 32, plan="mine")
LISTED = (
    "4711 1 4711 9 S\n--\n"
    f"/proc/4711/environ:PLACEWIRE_RUN={RUN.identifier}:{RANK}:4711:mine:{FOLDER}\0"
)


class Printing(SshServer):
    """Prints one text after the other, and the last one again and again."""

    def __init__(self, *texts: str) -> None:
        super().__init__("s1", "10.9.0.1", Login())
        self.texts = list(texts)

    def run(self, script: str, given: bytes = b"", seconds: float = 60.0) -> tuple[int, str, str]:
        return 0, self.texts.pop(0) if len(self.texts) > 1 else self.texts[0], ""

    def run_program(
        self, around: Surroundings, words_and_files: InFolder, seconds: float = 60.0
    ) -> tuple[int, str, str]:
        return self.run("")


def launcher(on: SshServer) -> SshLauncher:
    made = SshLauncher({"s1": "10.9.0.1"}, Login(), Surroundings("python", None, {}), plan="mine")
    made._servers = {"s1": on}
    return made


@pytest.mark.parametrize("remain", ["what ps does not print", "9" * 5000, "²"])
def test_a_user_whose_ps_prints_something_else_keeps_no_plan_in_force(remain: str) -> None:
    of = tools(cast(Any, launcher(Printing(LISTED, LISTED, remain))))
    asyncio.run(end_left_ranks_or_say("mine", of))
    assert "could not end ranks that still run: s1: what it answers over SSH is" in said(of)


def test_a_number_that_ps_never_prints_is_none() -> None:
    listed = f"{'9' * 5000} 1 4711 9 S\n{LISTED}"
    (rank,) = launcher(Printing(listed)).left()
    assert rank.pid == 4711


def test_what_is_not_foreseen_of_one_server_is_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def defect(self: SshServer, *given: Any, **named: Any) -> None:
        raise IndexError("list index")

    monkeypatch.setattr(Printing, "run", defect)
    of = tools(cast(Any, launcher(Printing(""))))
    asyncio.run(end_left_ranks_or_say("mine", of))
    assert "not understood: IndexError: list index" in said(of)


@pytest.mark.parametrize("answer", ["5", "[]", "{}", '{"placewire": null}', "[" * 100_000])
def test_a_python_that_answers_something_else_is_refused(answer: str) -> None:
    with pytest.raises(UsageError) as refused:
        launcher(Printing(answer)).require_ready()
    assert refused.value.where == "s1"


def test_a_python_that_does_not_say_whether_the_model_is_there_is_refused() -> None:
    versions = {name: importlib.metadata.version(name) for name in ("placewire", "torch")}
    with pytest.raises(UsageError, match="is not found there"):
        launcher(Printing(json.dumps(versions))).require_ready()


def test_another_commit_whose_ranks_are_told_other_things_is_refused() -> None:
    """It would print what it does not know, such as a script's variables."""
    known: dict[str, Any] = {n: importlib.metadata.version(n) for n in ("placewire", "torch")}
    answer = {**known, "model": True, "script": True, "told": ["rank", "steps"]}
    with pytest.raises(UsageError, match="another commit of Placewire is installed there"):
        launcher(Printing(json.dumps(answer))).require_ready()


def test_a_field_that_takes_other_values_there_is_another_commit_and_another_wording_none() -> None:
    specs = (RankSpec, ScriptSpec)
    schemas = [json.loads(json.dumps(spec.model_json_schema())) for spec in specs]
    known: dict[str, Any] = {
        n: importlib.metadata.version(n) for n in ("placewire", "torch", "pydantic")
    }
    told = sorted({name for spec in specs for name in spec.model_fields})
    answer = {**known, "model": True, "script": True, "told": told, "schemas": schemas}
    schemas[0]["description"] = schemas[0]["properties"]["rank"]["title"] = "in other words"
    launcher(Printing(json.dumps(answer))).require_ready()
    schemas[0]["properties"]["rank"]["type"] = "string"
    with pytest.raises(UsageError, match="another commit of Placewire is installed there"):
        launcher(Printing(json.dumps(answer))).require_ready()
    launcher(Printing(json.dumps({**answer, "pydantic": "2.10"}))).require_ready()


@pytest.fixture
def odd_server() -> Iterator[int]:
    """The TCP port of a server whose host key is none."""

    class NoKey(paramiko.ECDSAKey):
        def asbytes(self) -> bytes:
            message = paramiko.Message()
            message.add_string("ecdsa-sha2-nistp256")
            message.add_string(b"\xff\xfe")
            message.add_string(b"x")
            return bytes(message.asbytes())

    key = NoKey.generate()
    key.__class__ = NoKey
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    transport = paramiko.Transport(listener.accept()[0])
                    transport.add_server_key(key)
                    transport.start_server(event=threading.Event())
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def test_a_server_that_sends_no_key_is_named(odd_server: int, tmp_path: Path) -> None:
    (tmp_path / "hosts").touch()
    login = Login("user", odd_server, None, tmp_path / "hosts")
    with Patience(30) as patience, pytest.raises(LaunchFailed) as failed:
        connected("s1", "127.0.0.1", login, patience)
    assert failed.value.where.startswith("s1 (127.0.0.1")


@pytest.mark.parametrize(
    "line",
    [
        b"# M\xfcnchen",
        b"other ssh-rsa AAAA=B!!",
        b"other ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA",
        b"|1|x|y ssh-rsa AAAAB3NzaC1yc2E=",
    ],
)
def test_a_file_of_host_keys_that_cannot_be_read_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(line + b"\n")
    with Patience(30) as patience, pytest.raises(LaunchFailed, match="hosts, which has") as failed:
        connected("s1", "127.0.0.1", Login("user", 1, None, file), patience)
    assert failed.value.where == "s1 (127.0.0.1, port 1)" and "remove" in failed.value.remedy
