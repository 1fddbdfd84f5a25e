"""What people are told of a decision's phase, in the same words by every command. The journal's own
names stay as they are: files of former releases have them, and so has `--json`."""

from __future__ import annotations

from collections.abc import Mapping

# A decision is undone; it is the network from before that is restored.
_WORDS: Mapping[str, str] = {"restored": "undone", "restore failed": "not undone everywhere"}


def phase_in_words(phase: str) -> str:
    return _WORDS.get(phase, phase)
