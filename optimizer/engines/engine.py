"""What a placement method is: an engine, as it is registered and asked for."""

from __future__ import annotations

from argparse import _ArgumentGroup
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from placewire.optimizer.engines.solution import Report, Solution
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.registry import Refusal, Registry

Decides = Literal["devices", "devices, order", "devices, rates", "devices, order, rates"]
# Raises InfeasibleError where no placement within the memories is found, and OutOfTimeError.
Solve = Callable[[Problem, SolveSettings, Report | None], Solution]


def takes_all(problem: Problem) -> Refusal | None:
    return None


@dataclass(frozen=True)
class Engine:
    """A placement method. Any may be asked under any model and sharing: each decides by a view of
    its own, and what it finds is scored, and checked, under the problem's.

    summary, paper, section: for people; paper is "" for our own. decides: what of a solution it
    gives. sees: the network by which it decides. memory: what it knows of it; whatever that is, a
    placement that exceeds a memory is refused. unlike: what it makes of devices of unlike types.
    accepts: why it does not take a problem, None where it does; it is asked about the reduced one.
    reduction: what `auto` means for it; None: by the graph's size. options: add options of its own
    to `optimizer solve`, which come as SolveSettings.options by their `dest`; of these,
    output_options name files to write.
    """

    summary: str
    solve: Solve
    paper: str = ""
    section: str = ""
    decides: Decides = "devices"
    sees: str = ""
    memory: str = ""
    unlike: str = ""
    accepts: Callable[[Problem], Refusal | None] = takes_all
    reduction: str | None = None
    options: tuple[Callable[[_ArgumentGroup], None], ...] = ()
    output_options: tuple[str, ...] = ()


ENGINES = Registry("placewire.engines", "engine", Engine)
