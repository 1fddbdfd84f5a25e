"""Why a published formulation gives no placement, beside that there is none."""

from __future__ import annotations

from placewire.optimizer.engines.refusals import EngineRefusedError, OutOfTimeError


class FormulationTooLargeError(EngineRefusedError):
    """The program as the paper writes it cannot be built or solved here; nothing was built."""


class FormulationRefusedError(EngineRefusedError):
    """The cluster is not one that the paper's model describes, or its solver is missing."""


class NoIncumbentError(OutOfTimeError):
    """The solver's time ran out before it found any placement; there may well be one."""
