"""The types of the list: a published table or figure, what it claims, and how ours is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.reproduction.rules import Rule
from placewire.optimizer.published.comparison.presets.preset import Preset

# always: each model must hold by each rule. once: one of them is enough ("up to"). on average: the
# mean of what the rules measure must hold.
Quantifier = Literal["always", "once", "on average"]


@dataclass(frozen=True)
class Claim:
    """says: a sentence of ours that tells what the paper claims. paper: its number. models: those
    of which it is claimed; all, where none is named."""

    says: str
    paper: str
    rules: tuple[Rule, ...]
    holds: Quantifier = "always"
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class FromPreset:
    """`optimizer compare --preset NAME`."""

    name: str


@dataclass(frozen=True)
class FromOwn:
    """Figures like a preset's that `optimizer compare` does not have."""

    make: Callable[[], Preset]


@dataclass(frozen=True)
class FromTests:
    """Tests that work an example of the paper; each is a figure: which part of its cases passed.
    chosen: an expression for `pytest -k`."""

    files: tuple[str, ...]
    chosen: str


@dataclass(frozen=True)
class FromReport:
    """A table of a report in docs/benchmarks, made by `command`. keys: how many of its first
    columns name a row: the first is the model, others come before the name of the column. times:
    the figures that other programs make longer; None: it is not known which, so that a table is
    refused that was measured beside such. picture: from docs on, what draws the table."""

    file: str
    title: str
    command: str
    keys: int = 1
    times: tuple[str, ...] | None = None
    picture: str = ""


@dataclass(frozen=True)
class Never:
    """It cannot be asked here."""

    why: str


Source = FromPreset | FromOwn | FromTests | FromReport | Never


@dataclass(frozen=True)
class Entry:
    """place: as in `table 5.1`. differs: how our setting differs, beyond what a preset says.
    unasked: what the text claims of it and is not asked, with the reason."""

    paper: str
    place: str
    shows: str
    source: Source
    claims: tuple[Claim, ...] = ()
    differs: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        return f"{self.paper}, {self.place}"

    @property
    def anchor(self) -> str:
        kept = (c for c in self.heading.lower() if c.isalnum() or c in " -_")
        return "".join(kept).replace(" ", "-")

    @property
    def name(self) -> str:
        """The name under which runs are kept, and which `--only` takes."""
        if isinstance(self.source, FromPreset):
            return self.source.name
        return self.heading.lower().replace(",", "").replace(" ", "-")


# Tables and figures that explain or list, and claim no result: (paper, places, what they are).
Illustrations = tuple[tuple[str, str, str], ...]
