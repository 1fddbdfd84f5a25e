"""Chooses the servers' next generations: above all that the agents or this journal have seen.

An agent may be another's, and what it reports goes into the journal for good. So it may be above
the journal by as much as a lost journal explains, and by no more: generations would come to an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placewire.agent.contract.state import DesiredState
from placewire.controller.agent_advice import doubt_generation
from placewire.controller.agents.agents import Agents
from placewire.controller.errors import AgentProblem
from placewire.controller.records.journal import Journal

# More than the changes of one server in a hundred years.
_FARTHEST = 1_000_000


def next_generations(journal: Journal, agents: Agents, servers: Iterable[str]) -> dict[str, int]:
    """Raises AgentProblem where an agent reports a generation that no controller gave it."""
    return {
        server: _next(journal, server, agents.hello[server].lease.highest_generation)
        for server in servers
    }


def _next(journal: Journal, server: str, reported: int) -> int:
    known = journal.next_generation(server, 0) - 1
    if reported > known + _FARTHEST:
        raise AgentProblem(
            f"its agent says that it has seen generation {reported}; the last that this journal "
            f"has for it is {known}",
            where=server,
            remedy=doubt_generation(server),
        )
    return journal.next_generation(server, reported)


def with_next_generations(
    journal: Journal, agents: Agents, states: Mapping[str, DesiredState]
) -> dict[str, DesiredState]:
    """The same states under their servers' next generations, so that they can be staged again.
    Raises what `next_generations` raises."""
    return {
        server: states[server].model_copy(update={"generation": generation})
        for server, generation in next_generations(journal, agents, states).items()
    }
