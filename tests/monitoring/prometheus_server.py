"""A Prometheus of its own for a test, which scrapes Unix sockets through ports of the loopback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.free_port import free_port
from tests.monitoring.deployed import ALERTS, CONFIGURATION

FOLDER = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "placewire" / "prometheus"
START_SECONDS = 120.0
SCRAPE_SECONDS = 2


def program(name: str) -> str:
    found = FOLDER / name
    assert found.exists(), f"{found} is missing: `make test-monitoring` unpacks it"
    return str(found)


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **parameters: str) -> Any:
        """Raises urllib.error.URLError; HTTPError where the query is wrong."""
        words = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/{path}?{words}", timeout=60) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        found = self.query('ALERTS{alertstate="firing"}')
        return {one["metric"]["alertname"] for one in found}


@contextmanager
def prometheus(folder: Path, sockets: Mapping[str, Mapping[str, Path]]) -> Iterator[Prometheus]:
    """With the deployed configuration, but faster, and with these targets: sockets by their names,
    by job."""
    with _relayed([path for some in sockets.values() for path in some.values()]) as ports:
        configuration = yaml.safe_load(CONFIGURATION.read_text())
        configuration["global"] = dict.fromkeys(
            ("scrape_interval", "evaluation_interval"), f"{SCRAPE_SECONDS}s"
        )
        configuration["rule_files"] = [str(ALERTS)]
        for job in configuration["scrape_configs"]:
            job["scrape_interval"] = f"{SCRAPE_SECONDS}s"
            job["static_configs"] = [
                {"targets": [f"127.0.0.1:{ports[path]}"], "labels": {"instance": name}}
                for name, path in sockets[job["job_name"]].items()
            ]
        file, port = folder / "prometheus.yaml", free_port()
        file.write_text(yaml.safe_dump(configuration))
        command = [
            program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]  # fmt: skip
        with (folder / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            server = Prometheus(port)
            _await(server, process, folder / "prometheus.log")
            yield server
        finally:
            process.terminate()
            process.wait()


def _await(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(urllib.error.URLError, OSError):
            server.query("vector(1)")
            return
        time.sleep(0.2)
    raise AssertionError(f"Prometheus does not answer:\n{log.read_text()[-3000:]}")


@contextmanager
def _relayed(paths: list[Path]) -> Iterator[dict[Path, int]]:
    """Ports of the loopback that pass on to these sockets; where one is not there, its port hangs
    up, as one does where nothing listens."""
    loop, ports = asyncio.new_event_loop(), {path: free_port() for path in paths}
    ready, ending = threading.Event(), asyncio.Event()

    async def relay() -> None:
        servers = [await asyncio.start_server(_passing_on(path), "127.0.0.1", port)
                   for path, port in ports.items()]  # fmt: skip
        ready.set()
        await ending.wait()
        for server in servers:
            server.close()
        answering = asyncio.all_tasks() - {asyncio.current_task()}
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(relay(),))
    thread.start()
    assert ready.wait(START_SECONDS), "a port was taken meanwhile"
    try:
        yield ports
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


def _passing_on(path: Path) -> Any:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            answering, asking = await asyncio.open_unix_connection(path)
            asking.write(await reader.readuntil(b"\r\n\r\n"))
            writer.write(await answering.read())
            await writer.drain()
            asking.close()
        writer.close()

    return serve
