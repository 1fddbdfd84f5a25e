"""What an interrupted command says that it does is what it does."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.controller.cli import main
from placewire.controller.commands import provision
from placewire.controller.commands.interrupts import interruptible
from placewire.controller.errors import EXIT_CODES, INTERRUPTED
from tests.controller.plans import plan_document


async def interrupted(*_: Any) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(20)
    return 0


def test_work_that_is_interrupted_puts_back(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        interruptible(interrupted())
    assert "interrupted; putting back what is half done" in capsys.readouterr().err


def test_an_installation_puts_nothing_back_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "_provision", interrupted)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan_document()))
    with pytest.raises(SystemExit) as ended:
        main(["provision", str(tmp_path / "plan.yaml"), "--yes"])
    said = capsys.readouterr().err
    assert ended.value.code == INTERRUPTED
    assert "what is done on servers stays" in said and "putting back" not in said
    assert "what provision has done stays" in EXIT_CODES[INTERRUPTED]
