"""Answers each request of the controller. Effects are passed in; this module opens no socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from placewire.agent.contract import messages
from placewire.agent.contract.diagnosis import Diagnosis
from placewire.agent.contract.measurement import Neighbour
from placewire.agent.contract.state import Refusal, refuse
from placewire.agent.keep.keeper import Keeper
from placewire.agent.measure.measuring import Iperf3Measuring
from placewire.agent.reconcile.effects import EffectError
from placewire.agent.reconcile.lease import LeaseRefusedError
from placewire.frozen import Frozen

_REQUEST: TypeAdapter[Any] = TypeAdapter(messages.Request)
# How many characters of a message that is not understood are quoted.
LONGEST_QUOTE = 200


def _nobody_looks() -> Diagnosis:
    raise EffectError("this agent was started without its doctor")


def _nobody_answers(interfaces: Sequence[str], addresses: Sequence[str]) -> tuple[Neighbour, ...]:
    raise EffectError("this agent was started without a way to ask its neighbours")


class Service:
    """Requests may run at the same time: the keeper serialises those that change the network.

    diagnose: does what `agent doctor` does. find_neighbours: says which of (interfaces, addresses)
    answer.
    """

    def __init__(
        self,
        server: str,
        keeper: Keeper,
        measuring: Iperf3Measuring,
        diagnose: Callable[[], Diagnosis] = _nobody_looks,
        find_neighbours: Callable[
            [Sequence[str], Sequence[str]], tuple[Neighbour, ...]
        ] = _nobody_answers,
    ) -> None:
        self._server = server
        self._keeper = keeper
        self._measuring = measuring
        self._neighbours = find_neighbours
        in_thread = asyncio.to_thread
        self._handlers: dict[type[Frozen], Callable[[Any], Awaitable[Frozen]]] = {
            messages.Observe: lambda _: in_thread(keeper.observe),
            messages.Preview: lambda r: in_thread(keeper.preview, r.desired),
            messages.Stage: lambda r: in_thread(keeper.stage, r.desired, r.lease_seconds),
            messages.Renew: lambda r: in_thread(keeper.renew, r.generation, r.lease_seconds),
            messages.Commit: lambda r: in_thread(keeper.commit, r.generation, r.lease_seconds),
            messages.Restore: lambda r: in_thread(keeper.restore, r.generation),
            messages.Destroy: lambda r: in_thread(keeper.destroy, r.plan_name),
            messages.ReadBack: lambda r: in_thread(keeper.read_back, r.generation),
            messages.StartServers: self._start_servers,
            messages.RunTransfers: self._run_transfers,
            messages.StopServers: self._stop_servers,
            messages.ReadCounters: self._read_counters,
            messages.FindNeighbours: self._find_neighbours,
            messages.Diagnose: lambda _: in_thread(diagnose),
        }

    async def answer(self, body: Any) -> Frozen | Refusal:
        """body: a request as JSON. Returns a Refusal where it is not understood or not done."""
        try:
            request = _REQUEST.validate_python(body)
        except ValidationError as error:
            return self._unknown(body, error)
        try:
            return await self._handlers[type(request)](request)
        except LeaseRefusedError as error:
            return error.refusal
        except EffectError as error:
            return self._refusal(str(error), "repair that, then ask again")

    async def _start_servers(self, request: messages.StartServers) -> messages.Listening:
        ports = await self._measuring.start_servers(request.transfers, request.seconds)
        return messages.Listening(tcp_ports=ports, clock_unix=time.time())

    async def _run_transfers(self, request: messages.RunTransfers) -> messages.TransferResults:
        results = await self._measuring.run_transfers(
            request.transfers, request.seconds, request.start_unix
        )
        return messages.TransferResults(results=results)

    async def _stop_servers(self, _: messages.StopServers) -> messages.Listening:
        await self._measuring.stop_servers()
        return messages.Listening(tcp_ports=(), clock_unix=time.time())

    async def _read_counters(self, request: messages.ReadCounters) -> messages.Counters:
        return messages.Counters(counters=self._measuring.read_counters(request.interfaces))

    async def _find_neighbours(self, request: messages.FindNeighbours) -> messages.Neighbours:
        """Raises EffectError where an interface is no bridge of the state in force."""
        desired = self._keeper.desired
        ours = {bridge.name for bridge in desired.bridges} if desired is not None else set()
        if others := [name for name in request.interfaces if name not in ours]:
            raise EffectError(f"{', '.join(others)}: no bridge of the state in force here")
        found = await asyncio.to_thread(self._neighbours, request.interfaces, request.addresses)
        return messages.Neighbours(found=found)

    def _unknown(self, body: Any, error: ValidationError) -> Refusal:
        name = body.get("request") if isinstance(body, dict) else None
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "request"
        return self._refusal(
            f"request {_shown(repr(name))} is not understood: {_shown(place)}: {first['msg']}",
            "run the same version of controller and agent",
        )

    def _refusal(self, what: str, remedy: str) -> Refusal:
        return refuse(f"server {self._server}", what, remedy)


def _shown(text: str) -> str:
    """The beginning of a text that another program wrote, with what cannot be sent escaped."""
    return text[:LONGEST_QUOTE].encode(errors="backslashreplace").decode()
