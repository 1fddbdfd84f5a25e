"""Errors of an engine that returns no placement although one may exist."""

from __future__ import annotations


class EngineRefusedError(ValueError):
    """The engine's paper describes no such problem, or a library that it needs is missing."""


class OutOfTimeError(ValueError):
    """The time ran out before the engine had any placement."""
