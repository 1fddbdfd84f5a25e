"""Measures whether the network delivers what was promised, more than once where it must."""

from __future__ import annotations

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.change.change import NetworkChange
from placewire.controller.compile.transfers import promises
from placewire.controller.plan.plan import Plan
from placewire.controller.story.tools import Tools
from placewire.controller.verify.bandwidth_check import measure, require_delivered
from placewire.controller.verify.wiring import require_as_wired
from placewire.optimizer.allocation import Allocation

MOST_MEASUREMENTS = 3


async def delivered(
    tools: Tools, plan: Plan, allocation: Allocation, change: NetworkChange, measured: bool
) -> tuple[LinkMeasurement, ...]:
    """measured: whether to measure the staged network at all. Raises VerificationFailed."""
    if not measured:
        tools.show.say("rates were read back from the kernel; nothing is measured")
        return ()
    with tools.stage("measure"):
        links = await change.while_held(measure_until_sure(tools, plan, allocation))
    require_delivered(links)
    return links


async def measure_until_sure(
    tools: Tools, plan: Plan, allocation: Allocation
) -> tuple[LinkMeasurement, ...]:
    """Measures again where a rate is missed: a passing burst of others' work must not undo a good
    network, and a real fault shows each time. Raises VerificationFailed at once where NICs are on
    other rails than the plan says."""
    promised = promises(plan, allocation)
    for attempt in range(1, MOST_MEASUREMENTS + 1):
        links = await measure(tools.agents, plan, promised)
        tools.show.links(links)
        if all(link.within_tolerance for link in links):
            break
        await require_as_wired(tools.agents, plan, links)
        if attempt < MOST_MEASUREMENTS:
            tools.show.say(
                f"a promised rate was missed; measuring again, {attempt + 1} of {MOST_MEASUREMENTS}"
            )
    return links
