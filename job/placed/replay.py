"""Replays a graph and a placement: messages are real, operators only take their time.

The rank computes when its device would be free. It sleeps only where others see the time: at a
send, at a receive, and at the end. A late wake-up therefore delays one message but not all that
follow, and several ranks can share few cores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessage, RankMessages
from placewire.job.placed.recorder import Recorder
from placewire.job.transport.transport import Transport
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement, Sent

# time.sleep wakes up late by about this much; the end of a wait is therefore a busy loop.
SPIN_SECONDS = 0.0002
# A wait that returns faster than this found its message there already.
ARRIVED_SECONDS = 0.00005


@dataclass(frozen=True)
class Compute:
    """Operators (id, seconds) without a message between them. seconds: of all together, or, without
    operators, of a bundle's copies."""

    seconds: float
    operators: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class SendAction:
    message: RankMessage


@dataclass(frozen=True)
class ReceiveAction:
    message: RankMessage


Action = Compute | SendAction | ReceiveAction


def replay_actions(
    graph: OperatorGraph,
    placement: Placement,
    device: str,
    messages: RankMessages,
    time_scale: float,
) -> tuple[Action, ...]:
    """Returns this rank's step. Raises JobError where the placement does not fit the graph.

    A tensor of 0 bytes orders operators on one device; between devices nothing is sent for it, so
    that the order is not enforced.
    """
    if graph.structure_hash != placement.structure_hash:
        raise JobError(
            f"the graph file has structure {graph.structure_hash[:12]}, the placement was made for "
            f"{placement.structure_hash[:12]}",
            "use the graph file that was solved",
        )
    names = placement.cluster.device_names
    column = graph.device_types.index(placement.cluster.devices[names.index(device)].type)
    arriving = {
        (one.producer, one.output): message
        for message in messages.receives
        for one in message.tensors
    }
    received: set[int] = set()
    actions: list[Action] = []
    for identifier in placement.order[device]:
        operator = graph.index_of[identifier]
        for tensor in graph.input_tensors(operator).tolist():
            producer = int(graph.tensor_producer[tensor])
            output = int(np.flatnonzero(graph.output_tensors(producer) == tensor)[0])
            message = arriving.pop((graph.ids[producer], output), None)
            if message is not None and message.index not in received:
                received.add(message.index)
                actions.append(ReceiveAction(message))
        seconds = float(graph.seconds[operator, column]) * time_scale
        if not np.isfinite(seconds):
            raise JobError(f"operator {identifier!r} has no time on {device}: it cannot run there")
        if actions and isinstance(actions[-1], Compute):
            earlier = actions[-1]
            together = (*earlier.operators, (identifier, seconds))
            actions[-1] = Compute(earlier.seconds + seconds, together)
        else:
            actions.append(Compute(seconds, ((identifier, seconds),)))
        packed = set[tuple[Sent, ...]]()
        for message in messages.sends.get(identifier, ()):
            copied = message.bytes * float(graph.copy_seconds_per_byte[column])
            if message.bundled and copied and message.tensors not in packed:
                packed.add(message.tensors)
                actions.append(Compute(copied * time_scale))
            actions.append(SendAction(message))
    if arriving:
        raise JobError(f"message of {min(arriving)[0]!r} comes to {device}, where nothing needs it")
    return tuple(actions)


def replay_step(
    actions: tuple[Action, ...],
    transport: Transport,
    payload: torch.Tensor,
    recorder: Recorder | None = None,
) -> None:
    """payload: uint8, at least as large as the largest message; its values do not matter."""
    free = time.perf_counter()
    for action in actions:
        if isinstance(action, Compute):
            if recorder is not None and recorder.on:
                recorder.in_turn(action.operators, free)
            free += action.seconds
        elif isinstance(action, SendAction):
            sleep_until(free)
            transport.send(action.message, payload[: action.message.bytes])
        else:
            sleep_until(free)
            before = time.perf_counter()
            transport.receive(action.message)
            after = time.perf_counter()
            if after - before > ARRIVED_SECONDS:
                free = after
    sleep_until(free)


def sleep_until(deadline: float) -> None:
    """deadline: by time.perf_counter."""
    coarse = deadline - time.perf_counter() - SPIN_SECONDS
    if coarse > 0:
        time.sleep(coarse)
    while time.perf_counter() < deadline:
        pass


def payload_for(actions: tuple[Action, ...]) -> torch.Tensor:
    sizes = [action.message.bytes for action in actions if isinstance(action, SendAction)]
    return torch.zeros(max(sizes, default=0), dtype=torch.uint8)
