"""The type of a placement method, an *engine*, and the registry of all engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from placewire.optimizer.registry import Refusal, Registry

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from placewire.optimizer.engines.solution import Report, Solution
    from placewire.optimizer.problem import Problem, SolveSettings

Decides = Literal["devices", "devices, order", "devices, rates", "devices, order, rates"]
# Raises InfeasibleError where no placement within the memories is found, and OutOfTimeError.
Solve: TypeAlias = "Callable[[Problem, SolveSettings, Report | None], Solution]"


def takes_all(problem: Problem) -> Refusal | None:
    return None


@dataclass(frozen=True)
class Engine:
    """A placement method. It works under any model and sharing: it decides by a view of its own,
    and its answer is scored and checked under the problem's.

    summary, paper, section: for people; paper is "" for Placewire's own. decides: the parts of a
    solution that it decides. sees: the network by which it decides. memory: how it counts memory (a
    placement that exceeds a memory is refused all the same). unlike: how it treats devices of
    different types. accepts: returns why it does not take a reduced problem, None where it does.
    reduction: the reduction that `auto` means for it; None: by the graph's size. options: each adds
    arguments to `optimizer solve`, which come as SolveSettings.options by their `dest`;
    output_options: those of them that name files to write.
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
