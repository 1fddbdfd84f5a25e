"""A headless Chromium for tests, told what to do by its own protocol over two pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# A busy machine takes a while to start it.
_LONGEST_SECONDS = 240.0
_SANDBOX_NEEDS_A_USER = ("--no-sandbox",) if os.geteuid() == 0 else ()
# Chromium reads commands from descriptor 3 and writes answers to descriptor 4.
_READS, _WRITES = 3, 4


# Chromium's own, where nobody sets another margin; and CSS's.
_MARGIN_INCHES, _PIXELS_PER_INCH = 0.4, 96


class Paper(NamedTuple):
    """Inches, as Chromium names them."""

    paperWidth: float
    paperHeight: float


A4, LETTER = Paper(8.27, 11.69), Paper(8.5, 11)


class ShownPage:
    """A page that is open. requested: each address that anything in it asked for."""

    def __init__(self, commands: int, answers: int, folder: Path) -> None:
        self._commands, self._answers, self._folder = commands, answers, folder
        self._numbers, self._left = itertools.count(1), b""
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        self.requested: list[str] = []

    def open(self, file: Path, width: int, height: int = 900) -> None:
        """Opens the file in a window of this size, in place of what was open before."""
        if self._session is None:
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Network"):
                self._ask(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        self._ask("Emulation.setEmulatedMedia", media="")
        self.requested.clear()
        self._events.clear()
        self._ask("Page.navigate", url=file.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._take()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page, which itself has no script."""
        told = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"]["value"]

    def picture(self, file: Path) -> None:
        """Writes the whole page, however long, as PNG."""
        told = self._ask("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        file.write_bytes(base64.b64decode(told["data"]))

    def printed(self, paper: Paper) -> bytes:
        """The PDF that a reader gets who prints it so and changes no setting."""
        told = self._ask("Page.printToPDF", **paper._asdict())
        return base64.b64decode(told["data"])

    def as_printed(self, paper: Paper) -> None:
        """Shows it as on paper, in a window as wide as what Chromium prints on."""
        self._ask("Emulation.setEmulatedMedia", media="print")
        width = round(_PIXELS_PER_INCH * (paper.paperWidth - 2 * _MARGIN_INCHES))
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._commands, json.dumps(asked).encode() + b"\0")
        while (told := self._take()).get("id") != number:
            pass
        assert "error" not in told, told
        answer: dict[str, Any] = told["result"]
        return answer

    def _take(self) -> dict[str, Any]:
        """The next answer or event; events are kept."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        while b"\0" not in self._left:
            ready, _, _ = select.select(
                [self._answers], [], [], max(0, deadline - time.monotonic())
            )
            assert ready, f"Chromium says nothing for {_LONGEST_SECONDS:g} s"
            got = os.read(self._answers, 1 << 20)
            assert got, f"Chromium ended: {(self._folder / 'log').read_text()[-500:]}"
            self._left += got
        text, _, self._left = self._left.partition(b"\0")
        told: dict[str, Any] = json.loads(text)
        if "method" in told:
            self._events.append(told)
            if told["method"] == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])
        return told


@contextmanager
def chromium(folder: Path) -> Iterator[ShownPage]:
    """folder: for its profile and log. Skips the test where there is no Chromium."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed: `make test-page` fetches it")
    folder.mkdir(exist_ok=True)
    our_commands, our_answers = os.pipe(), os.pipe()
    argv = [
        program, "--headless=new", *_SANDBOX_NEEDS_A_USER, "--disable-gpu", "--hide-scrollbars",
        "--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={folder}/profile",
    ]  # fmt: skip
    # The shell puts the pipes where Chromium looks for them.
    passed = our_commands[0], our_answers[1]
    shell = f'exec "$@" {_READS}<&{passed[0]} {_WRITES}>&{passed[1]}'
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *argv],
            pass_fds=passed, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    for descriptor in passed:
        os.close(descriptor)
    try:
        yield ShownPage(our_commands[1], our_answers[0], folder)
    finally:
        # Chromium ends when nobody can tell it anything any more.
        os.close(our_commands[1])
        try:
            process.wait(_LONGEST_SECONDS)
        finally:
            process.kill()
            process.wait()
            os.close(our_answers[0])
