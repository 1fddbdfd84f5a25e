"""Chooses the servers' next generations: above all that the agents or this journal have seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placewire.agent.contract.state import DesiredState
from placewire.controller.agents.agents import Agents
from placewire.controller.records.journal import Journal


def next_generations(journal: Journal, agents: Agents, servers: Iterable[str]) -> dict[str, int]:
    return {
        server: journal.next_generation(server, agents.hello[server].lease.highest_generation)
        for server in servers
    }


def with_next_generations(
    journal: Journal, agents: Agents, states: Mapping[str, DesiredState]
) -> dict[str, DesiredState]:
    """The same states under their servers' next generations, so that they can be staged again."""
    return {
        server: states[server].model_copy(update={"generation": generation})
        for server, generation in next_generations(journal, agents, states).items()
    }
