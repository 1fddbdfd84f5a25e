"""What the strong bound is proven of: a problem's relaxation, and what its operators take and hold.

Where devices take turns, what a step of some seconds forces onto one device is found first, and
each run of it becomes one operator (`turns`). What is proven holds for every schedule within that
step; a longer one is not spoken of, so no bound may be raised above the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placewire.optimizer.arrays import IntArray
from placewire.optimizer.bounds import exact_rates
from placewire.optimizer.bounds.contradiction import Limits, limits_of, tightened
from placewire.optimizer.bounds.exact_model import Machines
from placewire.optimizer.bounds.load import all_alike, share_of_load
from placewire.optimizer.bounds.message_time import Messages, messages_of, no_messages
from placewire.optimizer.bounds.relaxation import Relaxation, relax
from placewire.optimizer.bounds.turns import as_one, summed, with_turns
from placewire.optimizer.problem import Problem

_ROUNDS = 30


@dataclass(frozen=True)
class Subject:
    """home int64[n]: the relaxation's operator that each of the graph's became. messages: none
    where messages take no time of devices or NICs and devices take turns."""

    relaxation: Relaxation
    limits: Limits
    messages: Messages
    machines: Machines
    home: IntArray


def subject_of(problem: Problem, step: float) -> Subject | None:
    """None where no schedule is within `step` seconds. What is proven holds for every schedule
    within `step`; a longer one is not spoken of, so no bound may be raised above `step`."""
    relaxation, machines = relax(problem), machines_of(problem)
    limits = limits_of(problem, share_of_load(problem.seconds))
    if problem.model != "thesis":
        home = np.arange(relaxation.operators)
        return Subject(relaxation, limits, messages_of(problem), machines, home)
    forced, _ = tightened(with_turns(relaxation), limits, step, _ROUNDS)
    if forced is None:
        return None
    joined, home = as_one(forced)
    limits = Limits(summed(limits.work, home), summed(limits.held_bytes, home), limits.memory_bytes)
    return Subject(joined, limits, no_messages(), machines.of_joined(home), home)


def machines_of(problem: Problem) -> Machines:
    seconds, memory = problem.seconds, problem.cluster.memory_bytes
    held = limits_of(problem, seconds.min(axis=1)).held_bytes
    alike = all_alike(seconds) and bool((memory == memory[0]).all())
    if exact_rates.servers_are_devices(problem):
        alike = alike and exact_rates.servers_are_alike(problem)
    return Machines(seconds, held, memory, alike, problem.model == "thesis")
