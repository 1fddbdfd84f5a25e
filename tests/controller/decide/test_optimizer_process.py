"""The optimizer's programs, which run in processes of their own."""

from __future__ import annotations

import pytest

from placewire.controller.decide.measured.optimizer_process import OPTIMIZER_PROGRAM, run_relayed
from placewire.controller.errors import InfeasiblePlacement


async def test_what_they_print_is_read_whatever_the_terminal_s_encoding_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Latin-1 a step's `µs` could not be read, and a `…` ended the search."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    listed = await run_relayed([*OPTIMIZER_PROGRAM, "engines"], print)
    assert "…" in listed.decode()


async def test_what_went_wrong_is_told_without_the_progress_before_it() -> None:
    lines = "   2.4 s  best none yet\\nerror: the devices hold 2 MiB\\n  add memory"
    program = f"import sys; print('{lines}', file=sys.stderr); sys.exit(4)"
    heard: list[str] = []
    with pytest.raises(InfeasiblePlacement) as refused:
        await run_relayed(["-c", program], heard.append)
    assert refused.value.what == "the devices hold 2 MiB\n  add memory"
    assert len(heard) == 3
