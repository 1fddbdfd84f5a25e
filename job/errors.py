"""The error with which a rank gives up."""

from __future__ import annotations


class JobError(ValueError):
    """What this rank was given does not fit together, or a peer was lost; remedy: what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
