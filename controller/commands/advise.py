"""`controller advise PLAN`: says what to train the plan's step with."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_plan
from placewire.controller.commands.session import with_launcher
from placewire.controller.commands.talking import print_document

if TYPE_CHECKING:
    from placewire.controller.launch.launcher import Launcher
    from placewire.controller.plan.plan import Plan

PURPOSE = "compare one device, DDP, FSDP, pipelines and a placement of ours; needs no agent"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)


def run(arguments: argparse.Namespace) -> int:
    async def advise(plan: Plan, launcher: Launcher) -> int:
        from placewire.controller.decide import advice
        from placewire.controller.show.story import Show

        show = Show(to_error=True)
        answer = await advice.advise(
            plan, arguments.plan, launcher, arguments.state_dir / "cache", show.progress,
            as_json=arguments.json,
        )  # fmt: skip
        if arguments.json:
            print_document(json.loads(answer))
        else:
            print(answer, end="")
        return 0

    return with_launcher(arguments, advise)
