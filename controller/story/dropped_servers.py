"""Finds servers that were taken out of a plan and still have its network."""

from __future__ import annotations

from collections.abc import Collection

from placewire.controller.errors import JournalFailed
from placewire.controller.plan.plan import Plan
from placewire.controller.story.tools import Tools

# An agent that runs dials in within this time.
_DIAL_SECONDS = 1.0


async def dropped_servers(plan: Plan, tools: Tools, *, but: Collection[str] = ()) -> list[str]:
    """A sentence for each, by what its agent said when it dialled in; of agents that do not dial
    in, by what the journal has, as far as it can be read. but: servers that were destroyed since.
    Waits a moment for those that the journal names, as the plan's servers may have dialled first.
    """
    servers = {*(server.name for server in plan.cluster.servers), *but}
    try:
        kept = tools.journal.holding(plan.name)
    except JournalFailed:
        kept = frozenset()
    await tools.agents.missing([*(kept - servers)], _DIAL_SECONDS)
    said = {server: hello.lease for server, hello in tools.agents.hello.items()}
    having = {s for s, lease in said.items() if not lease.is_idle and lease.plan_name == plan.name}
    remedy = "`controller destroy PLAN --server {server}` takes it away"
    forget = "`controller destroy PLAN --server {server} --forget` ends this where it never does"
    found = dict.fromkeys(having - servers, f"still has this network; {remedy}")
    found |= dict.fromkeys(
        kept - said.keys() - servers,
        "kept this network, and its agent has not dialled in to say otherwise; "
        f"{remedy} once it does; {forget}",
    )
    return [
        f"server {server} is no longer in the plan and {what.format(server=server)}"
        for server, what in sorted(found.items())
    ]
