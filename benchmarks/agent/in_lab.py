"""Measures bandwidth in a lab, one network after the other; bandwidth.py starts it on the lab's
controller.

    python -m benchmarks.agent.in_lab LAB < NETWORKS > MEASURED

NETWORKS and MEASURED are JSON, one line per network. Each network is staged, measured in its
rounds, and restored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.job.in_lab import SETTLE_SECONDS, Neighbour, answer_lines, staged
from placewire.agent.contract.measurement import Transfer
from placewire.controller.agents.agents import Agents
from placewire.controller.compile.queues import job_queues
from placewire.controller.compile.transfers import FIRST_TCP_PORT, Promise, promises
from placewire.controller.lab import Lab
from placewire.controller.plan.plan import Plan
from placewire.controller.records.journal import Journal
from placewire.controller.verify.bandwidth_check import measure
from placewire.optimizer.placement import Placement

# How long a neighbour runs where no transfer is measured beside it.
ALONE_SECONDS = 6.0
# From the end of the measured transfers to the end of their measurement.
ENDING_SECONDS = 0.5


async def rounds(
    asked: Mapping[str, Any], lab: Lab, agents: Agents, journal: Journal
) -> list[dict[str, Any]]:
    found = []
    async with staged(asked, agents, journal) as (plan, placement, change):
        for one in asked["rounds"]:
            chosen = _chosen(plan, placement, one["only"])
            beside = Neighbour(lab, **one["neighbour"]) if one["neighbour"] else None
            work = _measured(agents, plan, chosen, beside)
            found.append(await change.while_held(work))
    return found


async def _measured(
    agents: Agents, plan: Plan, chosen: Sequence[Promise], neighbour: Neighbour | None
) -> dict[str, Any]:
    got = None
    try:
        if neighbour is not None:
            await neighbour.start()
            await asyncio.sleep(SETTLE_SECONDS if chosen else ALONE_SECONDS)
        links = await measure(agents, plan, chosen)
    finally:
        if neighbour is not None:
            # The neighbour's rate counts while the job's transfers ran, which have just ended.
            ended = time.monotonic() - ENDING_SECONDS
            got = (await neighbour.stop(ended, ended - plan.network.verify_settings.seconds))["out"]
    return {"links": [link.model_dump() for link in links], "neighbour": got}


def _chosen(
    plan: Plan, placement: Placement, only: Sequence[Sequence[str]] | None
) -> list[Promise]:
    """The promises to measure. A queue for the whole job has no destination of its own: a transfer
    through it is made for each pair asked for."""
    queues = {(one.queue.source, one.queue.rail): one for one in job_queues(plan, placement)}
    if not any(one.queue.for_the_job for one in queues.values()):
        wanted = None if only is None else {tuple(pair) for pair in only}
        return [
            one
            for one in promises(plan, placement)
            if wanted is None
            or (one.transfer.source, one.transfer.destination, one.transfer.rail) in wanted
        ]
    address = {(s.name, n.rail): n.ip for s in plan.cluster.servers for n in s.nics}
    found = []
    for source, destination, rail in only or ():
        queue = queues[source, rail]
        transfer = Transfer(
            source=source, destination=destination, rail=rail,
            source_address=address[source, rail], destination_address=address[destination, rail],
            tcp_port=FIRST_TCP_PORT, promised_bits_per_second=queue.queue.minimum,
        )  # fmt: skip
        found.append(Promise(transfer, queue.maximum, queue.queue_id))
    return found


if __name__ == "__main__":
    answer_lines(rounds)
