"""qemu's control socket (QMP): one question, one answer."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any


class MonitorError(Exception):
    """What qemu would not do, and why."""


class Monitor:
    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile()

    def __enter__(self) -> Monitor:
        self._lines.readline()  # its greeting
        self.ask("qmp_capabilities")
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, command: str, **arguments: object) -> dict[str, Any]:
        question = {"execute": command, "arguments": arguments}
        self._socket.sendall(json.dumps(question).encode() + b"\n")
        for line in self._lines:
            answer = json.loads(line)
            if "error" in answer:
                raise MonitorError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return dict(answer["return"])
        return {}
