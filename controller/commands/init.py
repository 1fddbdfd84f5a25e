"""`controller init`: writes a first plan from what the agents find on their servers."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from placewire.controller.commands.arguments import (
    add_json,
    add_link,
    require_writable,
)
from placewire.controller.commands.interrupts import interruptible
from placewire.controller.commands.session import CONTROLLER_PROGRAM, agents_listening
from placewire.controller.commands.talking import print_json
from placewire.controller.errors import AgentUnreachable, UsageError
from placewire.controller.few_names import few_names
from placewire.controller.own_lab import own_lab
from placewire.optimizer.commands.arguments import positive

if TYPE_CHECKING:
    from placewire.agent.contract.messages import Hello
    from placewire.controller.agents.agents import Agents

PURPOSE = "write a commented plan from what the agents find on their servers; changes no server"
_ANY_SERVER = "any server"
# An agent gives NVIDIA's driver 20 s to say which GPUs there are.
_GPUS_SECONDS = 25.0
_LOOK_SECONDS = 0.1
_MODEL = "my_package.my_module:training_step"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "servers", nargs="*", metavar="SERVER", help="wait for these; default: all that dial in"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the plan.yaml")
    parser.add_argument("--name", help="the plan's name; default: that of the file")
    parser.add_argument("--model", default=_MODEL, help="package.module:function; docs/model.md")
    parser.add_argument(
        "--seconds", type=positive, default=10, help="how long to wait for agents; default: 10"
    )
    parser.add_argument("--lab", metavar="NAME", help="write a plan for the servers of this lab")
    add_json(parser)
    add_link(parser)


def run(arguments: argparse.Namespace) -> int:
    require_writable(arguments.out)
    if arguments.out.exists():
        raise UsageError(f"--out {arguments.out}: exists already", remedy="give another name")
    if arguments.lab is not None and own_lab() is None:
        from placewire.controller.lab import find_lab

        lab = find_lab(arguments.lab)
        if lab is None:
            raise UsageError(
                f"there is no lab {arguments.lab!r}",
                remedy="`controller lab list` lists those that exist",
            )
        lab.run_in_controller([sys.executable, *CONTROLLER_PROGRAM, *sys.argv[1:]])
    return interruptible(_init(arguments))


async def _init(arguments: argparse.Namespace) -> int:
    from placewire.controller.plan.discovery import discovered_plan

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    whose = arguments.servers or [_ANY_SERVER]
    async with agents_listening(arguments, whose, say) as agents:
        say(f"waiting for agents, at most {arguments.seconds} s")
        found = await _hellos(agents, arguments.servers, arguments.seconds)
        hellos = await _with_gpus(agents, list(found), say)
    name = arguments.name or arguments.lab or arguments.out.stem
    text = discovered_plan(name, arguments.model, hellos)
    with arguments.out.open("x", encoding="utf-8") as out:
        out.write(text)
    if arguments.json:
        print_json({"plan": str(arguments.out), "servers": list(hellos)})
    else:
        print(f"{arguments.out}: a plan for {', '.join(hellos)}; look through it, then preview it")
    return 0


async def _hellos(agents: Agents, wanted: list[str], seconds: float) -> Mapping[str, Hello]:
    """By server, in the order of `wanted`, or by name where no server is named."""
    if wanted:
        await agents.wait_for(wanted, timeout_seconds=seconds)
        return {server: agents.hello[server] for server in wanted}
    await asyncio.sleep(seconds)
    if not agents.hello:
        raise AgentUnreachable([_ANY_SERVER], why=f"none dialled in within {seconds:g} s")
    return dict(sorted(agents.hello.items()))


async def _with_gpus(
    agents: Agents, servers: Collection[str], say: Callable[[str], None]
) -> Mapping[str, Hello]:
    """Waits for agents that have not heard from NVIDIA's driver: they say hello again then."""

    def unread() -> list[str]:
        return [server for server in servers if agents.hello[server].capabilities.gpus_unread]

    deadline = time.monotonic() + _GPUS_SECONDS
    if some := unread():
        say(f"waiting for NVIDIA's driver on {few_names(some)}, at most {_GPUS_SECONDS:.0f} s")
    while unread() and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)
    return {server: agents.hello[server] for server in servers}
