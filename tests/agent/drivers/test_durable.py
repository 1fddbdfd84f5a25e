"""What ovsdb-server has on disk: it syncs its log only for whoever asks for that."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.drivers import ovsdb_connection
from placewire.agent.drivers.ovsdb_connection import connected, make_durable
from placewire.agent.keep.keeper import Keeper
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import Kept
from tests.agent.keeping import PLAN, keeper
from tests.agent.server_under_test import SCHEMA, ServerUnderTest, wait_for
from tests.agent.states import desired_state


@pytest.mark.network
def test_a_sync_is_the_last_that_the_database_hears_before_an_undo_counts(
    server: ServerUnderTest,
) -> None:
    told = server.inside(_told_of_a_stage_and_an_undo, server.config)
    assert told.count("transaction") > 3, "the proxy hears what the agent writes"
    assert told[-2:] == ["sync", "saved: idle"]
    assert told.count("sync") == 1, "a stage asks for none"


def _told_of_a_stage_and_an_undo(config: AgentConfig) -> list[str]:
    told: list[str] = []
    with _proxy(config.ovsdb_remote.removeprefix("unix:"), told) as path:
        agent = keeper(config.model_copy(update={"ovsdb_remote": f"unix:{path}"}))
        assert agent.stage(desired_state(1), 60).succeeded
        _tell_of_saves(agent, told)
        assert agent.destroy(PLAN).succeeded
    return told


def _tell_of_saves(agent: Keeper, told: list[str]) -> None:
    store: Any = agent._memory._store
    save = store.save

    def save_and_tell(kept: Kept) -> None:
        told.append(f"saved: {kept.lease.phase}")
        save(kept)

    store.save = save_and_tell


@contextmanager
def _proxy(server: str, told: list[str]) -> Iterator[str]:
    """A socket that passes everything on to ovsdb-server's, and tells of transactions."""
    path = f"{server}.proxy"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    there = socket.socket(socket.AF_UNIX)
                    there.connect(server)
                    _start(_pass_on, client, there, told)
                    _start(_pass_on, there, client, [])

        _start(accept)
        yield path


def _start(function: Any, *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, told: list[str]) -> None:
    text = ""
    while data := source.recv(1 << 16):
        text += data.decode()
        with suppress(json.JSONDecodeError):
            while text:
                message, end = json.JSONDecoder().raw_decode(text)
                text = text[end:]
                if message.get("method") == "transact":
                    is_sync = {"op": "commit", "durable": True} in message["params"]
                    told.append("sync" if is_sync else "transaction")
        sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def test_only_a_durable_change_makes_ovsdb_server_sync_its_log(tmp_path: Path) -> None:
    if (
        shutil.which("strace") is None
        or subprocess.run(["strace", "-qo", "/dev/null", "true"]).returncode
    ):
        pytest.skip("strace is not installed, or may not trace")
    trace, pid, remote = tmp_path / "trace", tmp_path / "pid", f"unix:{tmp_path}/db.sock"
    subprocess.run(["ovsdb-tool", "create", f"{tmp_path}/conf.db", SCHEMA], check=True)
    process = subprocess.Popen(
        ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(trace),
         "ovsdb-server", f"{tmp_path}/conf.db", f"--remote=p{remote}", "--no-chdir",
         f"--pidfile={pid}", f"--unixctl={tmp_path}/control", f"--log-file={tmp_path}/log",
         "-vconsole:off"],
    )  # fmt: skip
    try:
        wait_for((tmp_path / "db.sock").exists, "ovsdb-server")
        subprocess.run(["ovs-vsctl", "--no-wait", f"--db={remote}", "init"], check=True)
        subprocess.run(["ovs-vsctl", "--no-wait", f"--db={remote}", "add-br", "b"], check=True)
        assert "sync(" not in trace.read_text(), "what the IDL's transactions come to"
        make_durable(remote)
        assert trace.read_text().count("sync(") == 1
        with connected(remote) as database:
            assert database.switch.next_cfg == 1 and len(database.rows("Bridge")) == 1
    finally:
        # strace ends with what it traces, and would leave that running where it is ended itself.
        os.kill(int(pid.read_text()), signal.SIGTERM)
        process.wait(60)


def test_a_log_that_cannot_be_synced_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [{"count": 1}, {}, None, {"error": "I/O error", "details": "cannot sync conf.db"}]
    monkeypatch.setattr(ovsdb_connection, "_wait_for_listener", lambda _: None)
    monkeypatch.setattr(ovsdb_connection, "_ask", lambda *_: answer)
    with pytest.raises(EffectError, match=r"does not sync its log: cannot sync conf\.db"):
        make_durable("unix:/nowhere")
