"""Gives each phase of a decision the words by which every command tells people of it. The journal
keeps its own names: files of former releases have them, and so has `--json`."""

from __future__ import annotations

from collections.abc import Mapping

# A decision is undone; it is the network from before that is restored.
_WORDS: Mapping[str, str] = {"restored": "undone", "restore failed": "not undone everywhere"}


def phase_in_words(phase: str) -> str:
    return _WORDS.get(phase, phase)
