"""Measures whether the network delivers what was promised, more than once where it must."""

from __future__ import annotations

from placewire.agent.contract.measurement import LinkMeasurement
from placewire.controller.change.change import NetworkChange
from placewire.controller.compile.transfers import Promise
from placewire.controller.plan.plan import Plan
from placewire.controller.story.tools import Tools
from placewire.controller.verify.bandwidth_check import measure, require_delivered
from placewire.controller.verify.wiring import require_as_wired

MOST_MEASUREMENTS = 3


async def delivered(
    tools: Tools, plan: Plan, promised: tuple[Promise, ...] | None, change: NetworkChange
) -> tuple[LinkMeasurement, ...]:
    """promised: what the staged network must deliver, computed before it was staged; None: it is
    not measured. Raises VerificationFailed."""
    if promised is None:
        tools.show.say("rates were read back from the kernel; nothing is measured")
        return ()
    with tools.stage("measure"):
        links = await change.while_held(measure_until_sure(tools, plan, promised))
    require_delivered(links)
    tools.run.links = links
    return links


async def measure_until_sure(
    tools: Tools, plan: Plan, promised: tuple[Promise, ...]
) -> tuple[LinkMeasurement, ...]:
    """Measures again where a rate is missed: a passing burst of others' work must not undo a good
    network, and a real fault shows each time. Raises VerificationFailed at once where NICs are on
    other rails than the plan says."""
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
