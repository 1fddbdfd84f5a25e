"""Errors of an engine that returns no placement, or a wrong one, although one may exist."""

from __future__ import annotations


class EngineRefusedError(ValueError):
    """The engine's paper describes no such problem, or a library that it needs is missing."""


class BrokenRuleError(ValueError):
    """The engine's answer breaks a rule that every placement must keep: the engine has a defect."""


class OutOfTimeError(ValueError):
    """The time ran out before the engine had any placement."""
