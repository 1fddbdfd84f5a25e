"""The error of a reduction that does not take a graph."""

from __future__ import annotations


class ReductionRefusedError(ValueError):
    """The graph lacks the names or types by which the paper's scheme groups operators."""
