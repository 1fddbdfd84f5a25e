"""Why an engine gives no placement, beside that there is none (problem.InfeasibleError)."""

from __future__ import annotations


class EngineRefusedError(ValueError):
    """The problem is not one that the engine's paper describes, or what it runs on is missing."""


class OutOfTimeError(ValueError):
    """The time ran out before the engine had any placement; there may well be one."""
