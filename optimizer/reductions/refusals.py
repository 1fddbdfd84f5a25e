"""Why a reduction leaves a graph alone and says so."""

from __future__ import annotations


class ReductionRefusedError(ValueError):
    """The graph does not have what the paper's scheme groups operators by."""
