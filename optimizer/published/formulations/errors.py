"""Errors of a published formulation that may have a placement but gives none."""

from __future__ import annotations

from placewire.optimizer.engines.refusals import EngineRefusedError, OutOfTimeError


class FormulationTooLargeError(EngineRefusedError):
    """The paper's program is too large to be built or solved here; nothing was built."""


class FormulationRefusedError(EngineRefusedError):
    """The paper's model does not describe this cluster, or the solver is missing or unsuitable."""


class NoIncumbentError(OutOfTimeError):
    """The solver ran out of time before it found any placement; there may well be one."""


class SolverCrashedError(EngineRefusedError):
    """The solver's process ended by itself, without an answer."""
