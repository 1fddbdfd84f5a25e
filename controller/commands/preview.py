"""`controller preview PLAN`: shows every change that apply would make."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import add_network_only, add_plan, require_writable
from placewire.controller.commands.session import in_session
from placewire.controller.commands.talking import confirmed, print_json

if TYPE_CHECKING:
    from placewire.controller.plan.plan import Plan
    from placewire.controller.story.tools import Tools

PURPOSE = "show every change that apply would make; changes nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan(parser)
    add_network_only(parser, "of `apply --network-only`, whether ranks can be started or not")
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help="also write it to a file: `apply FILE` then makes exactly these changes, or none",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from placewire.controller.plan.plan_file import read_plan

    require_writable(arguments.out, reads=arguments.plan)
    # Read once: what is written is the plan that is shown, whatever becomes of its file meanwhile.
    document, plan = read_plan(arguments.plan)

    async def preview(plan: Plan, tools: Tools) -> int:
        from placewire.controller.story.preview_file import preview_of, write_preview
        from placewire.controller.story.propose import propose
        from placewire.controller.story.tools import ApplyRequest

        request = ApplyRequest(
            plan, arguments.plan, arguments.network_only, lambda: confirmed(yes=True)
        )
        proposal = await propose(request, tools)
        if arguments.out is not None:
            write_preview(preview_of(document, arguments.plan, proposal), arguments.out)
        if arguments.json:
            changes = {
                server: [change.model_dump() for change in answer.changes]
                for server, answer in proposal.previewed.items()
            }
            predicted = proposal.decision.predicted_step_seconds
            print_json({"plan": plan.name, "predicted_step_seconds": predicted, "changes": changes})
        return 0

    return in_session(arguments, preview, plan, makes_journal=False, shapes=True)
