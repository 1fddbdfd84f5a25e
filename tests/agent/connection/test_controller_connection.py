"""The link ends when it is told to, whatever else happens in that moment."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

import pytest

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
    config = AgentConfig.model_construct(controller_url="https://127.0.0.1:1", server="s1")  # type: ignore[call-arg]
    link = ControllerConnection(
        config, cast(Service, None), cast(Any, None), ssl.create_default_context()
    )
    running = asyncio.create_task(link.run())
    await dialled.wait()
    answer.set_exception(ConnectionRefusedError())
    # The connection attempt has its outcome now; the task that waits for it does not know it yet.
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=5)
    assert running.cancelled()
