"""The server of metrics, on a Unix socket and on the loopback."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from placewire import metrics_server
from placewire.metrics_server import REQUEST_BYTES, MetricsServer, NotKnownNow, loopback_port
from tests.free_port import free_port

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request here is slow, but the whole test may be held up."""
    monkeypatch.setattr(metrics_server, "REQUEST_SECONDS", 120.0)


async def ask(path: Path, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


def served(
    directory: Path,
    request: bytes,
    collect: Callable[[], str] = lambda: "x 1\n",
    say: Callable[[str], None] = print,
) -> tuple[bytes, bytes]:
    """The answer to this request, and the answer to a good request after it."""

    async def collected() -> str:
        return collect()

    async def run() -> tuple[bytes, bytes]:
        server = MetricsServer(collected, say)
        path = directory / "metrics.sock"
        await server.open_socket(path, 0o640)
        try:
            assert stat.S_IMODE(path.stat().st_mode) == 0o640
            return await ask(path, request), await ask(path, GET)
        finally:
            await server.close()

    return asyncio.run(run())


def test_metrics_are_answered_as_http(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "metrics.sock"))  # By a process that was killed.
    answer, _ = served(tmp_path, GET)
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"text/plain; version=0.0.4" in head
    assert b"Content-Length: 4" in head and body == b"x 1\n"
    assert not (tmp_path / "metrics.sock").exists(), "gone with its server"


@pytest.mark.parametrize(
    "request_bytes, status",
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /state HTTP/1.1\r\n\r\n", b"404"),
        (b"\x16\x03\x01\r\n\r\n", b"405"),
        (b"GET /" + b"a" * 2 * REQUEST_BYTES + b"\r\n\r\n", b""),
    ],
)
def test_other_requests_are_refused_and_end_nothing(
    tmp_path: Path, request_bytes: bytes, status: bytes
) -> None:
    answer, after = served(tmp_path, request_bytes)
    assert answer.split(b" ")[1:2] == ([status] if status else [])
    assert after.endswith(b"x 1\n")


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    def failing() -> str:
        raise NotKnownNow("the kernel does not answer \udcff")

    answer, _ = served(tmp_path, GET, failing)
    assert answer.startswith(b"HTTP/1.1 503") and b"does not answer \\udcff\n" in answer


def test_a_defect_is_answered_with_a_word_and_told_once(tmp_path: Path) -> None:
    asked, said = list[int](), list[str]()

    def fails() -> str:
        asked.append(len(asked))
        raise ZeroDivisionError(f"{len(asked)}\nb\x1b[2J\udcff")

    for answer in served(tmp_path, GET, fails, said.append):
        head, body = answer.split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500 ") and body == b"metrics cannot be made: a defect\n"
    (told,) = said
    assert len(asked) == 2 and f"ZeroDivisionError at {Path(__file__).name}:" in told
    assert told.endswith("1\\nb\\x1b[2J\\udcff")


def test_what_fails_once_ends_nothing(tmp_path: Path) -> None:
    answers = iter([b"\xff", b"x 1\n"])
    answer, after = served(tmp_path, GET, lambda: next(answers).decode())
    assert answer.startswith(b"HTTP/1.1 500 ") and after.endswith(b"x 1\n")


def test_a_loopback_port_is_served() -> None:
    async def collect() -> str:
        return "x 1\n"

    async def run(port: int) -> bytes:
        server = MetricsServer(collect, print)
        await server.open_port(loopback_port(port))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        answer = await reader.read()
        writer.close()
        await server.close()
        return answer

    assert asyncio.run(run(free_port())).endswith(b"x 1\n")


def test_no_other_file_than_a_socket_is_replaced(tmp_path: Path) -> None:
    async def collect() -> str:
        return ""

    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(OSError):
        asyncio.run(MetricsServer(collect, print).open_socket(file, 0o600))
    assert file.read_text() == "kept"
