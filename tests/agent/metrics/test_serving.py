"""Where an agent serves its metrics, and that it does without where it cannot."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from placewire.agent.contract.config import AgentConfig
from placewire.agent.metrics.serving import serve_metrics
from placewire.agent.reconcile.effects import EffectError
from tests.free_port import free_port
from tests.test_metrics_server import GET, ask


def config(directory: Path, tcp_port: int | None = None) -> AgentConfig:
    return AgentConfig(
        server="s1", controller_url="https://x", certificate_file="", key_file="",
        authority_file="", state_dir=str(directory), metrics_tcp_port=tcp_port,
    )  # fmt: skip


def test_its_group_may_ask_at_the_socket_and_everybody_at_the_port(tmp_path: Path) -> None:
    async def run(port: int) -> list[bytes]:
        server = await serve_metrics(config(tmp_path, port), lambda: "x 1\n")
        path = tmp_path / "metrics.sock"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        answers = [await ask(path, GET), await reader.read()]
        writer.close()
        await server.close()
        return answers

    assert all(answer.endswith(b"x 1\n") for answer in asyncio.run(run(free_port())))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    def failing() -> str:
        raise EffectError("the kernel does not answer")

    async def run() -> bytes:
        server = await serve_metrics(config(tmp_path), failing)
        answer = await ask(tmp_path / "metrics.sock", GET)
        await server.close()
        return answer

    assert asyncio.run(run()).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize("place", ["no/m.sock", "file", "file/m.sock", "a" * 120])
def test_a_socket_that_cannot_be_made_ends_no_agent(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()

    async def run() -> None:
        there_not = config(tmp_path).model_copy(update={"metrics_socket": f"{tmp_path}/{place}"})
        server = await serve_metrics(there_not, lambda: "")
        await server.close()

    asyncio.run(run())
    assert (tmp_path / "file").exists(), "which is not ours"
