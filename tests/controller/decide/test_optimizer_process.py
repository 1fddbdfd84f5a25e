"""The optimizer's programs, which run in processes of their own."""

from __future__ import annotations

import pytest

from placewire.controller.decide.measured.optimizer_process import OPTIMIZER_PROGRAM, run_relayed


async def test_what_they_print_is_read_whatever_the_terminal_s_encoding_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Latin-1 a step's `µs` could not be read, and a `…` ended the search."""
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    listed = await run_relayed([*OPTIMIZER_PROGRAM, "engines"], print)
    assert "…" in listed.decode()
