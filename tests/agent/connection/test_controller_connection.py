"""The link ends when it is told to, whatever else happens in that moment."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, cast

import pytest

from placewire.agent.connection import controller_connection
from placewire.agent.connection.controller_connection import ControllerConnection
from placewire.agent.contract.config import AgentConfig
from placewire.agent.service import Service


async def test_it_ends_though_its_dialling_ended_in_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialled = asyncio.Event()
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def open_connection(*_: Any) -> Any:
        dialled.set()
        return await answer

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    config = AgentConfig.model_construct(  # type: ignore[call-arg]
        controller_url="https://127.0.0.1:1", server="s1", authority_file="/none",
        certificate_file="/none", key_file="/none",
    )  # fmt: skip
    monkeypatch.setattr(
        controller_connection, "tls_context", lambda _: ssl.create_default_context()
    )
    link = ControllerConnection(config, cast(Service, None), cast(Any, None))
    running = asyncio.create_task(link.run())
    await dialled.wait()
    answer.set_exception(ConnectionRefusedError())
    # The connection attempt has its outcome now; the task that waits for it does not know it yet.
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=60)
    assert running.cancelled()


async def test_a_certificate_that_cannot_be_loaded_is_named_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dialled = asyncio.Event()

    async def open_connection(*_: Any) -> Any:
        dialled.set()
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    monkeypatch.setattr(controller_connection, "REFUSED_SECONDS", 0.01)
    file = tmp_path / "authority.crt"
    config = AgentConfig.model_construct(  # type: ignore[call-arg]
        controller_url="https://127.0.0.1:1", server="s1", authority_file=str(file),
        certificate_file=str(file), key_file=str(file),
    )  # fmt: skip
    running = asyncio.create_task(
        ControllerConnection(config, cast(Service, None), cast(Any, None)).run()
    )
    while str(file) not in caplog.text:
        await asyncio.sleep(0.01)
    assert not dialled.is_set() and not running.done()
    brought = ssl.create_default_context()
    monkeypatch.setattr(controller_connection, "tls_context", lambda _: brought)
    await asyncio.wait_for(dialled.wait(), 60)
    running.cancel()
    await asyncio.wait([running], timeout=60)
    assert running.cancelled()
    assert caplog.text.count("no controller can be reached") == 1, "told once, not at each attempt"
