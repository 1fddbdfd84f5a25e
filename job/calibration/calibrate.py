"""Measures the paths between servers through the job's own transport, in place of a job.

One rank per server takes part; the ranks are connected as a job's are, on the network as it was
shaped for the job. Unlike iperf3, this measures gloo's work and this program's along with the path.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch._C._distributed_c10d import TCPStore

from placewire.job.calibration.exchanges import (
    MEASURING_SECONDS,
    Exchange,
    calibrating_devices,
    everybody,
    exchange_placement,
    exchanges,
    paths_from,
)
from placewire.job.calibration.message_work import Work, message_work
from placewire.job.calibration.path_fit import fit_path
from placewire.job.contract.specification import (
    Calibrated,
    Finished,
    MeasuredPath,
    RankEvent,
    RankSpec,
    Started,
)
from placewire.job.errors import JobError
from placewire.job.messages.rank_messages import RankMessages, rank_messages
from placewire.job.supervision.heartbeat import Heart, Lost, limit_tcp_waits
from placewire.job.transport.backend import backend_notes, transport_of
from placewire.job.transport.connecting import connect
from placewire.job.transport.gloo import GlooTransport
from placewire.job.transport.nccl import NcclTransport
from placewire.job.transport.nccl_environment import BEFORE_CUDA
from placewire.job.transport.rendezvous import await_key, open_store
from placewire.optimizer.device_names import index_of, server_of
from placewire.optimizer.placement import Placement, load_placement

# No exchange begins after this time: where paths are far slower than the placement says, those
# that are not measured by then are left out.
LIMIT_SECONDS = 2.5 * MEASURING_SECONDS
_GO_ON, _ENOUGH = "go on", "enough"

# Seconds by bytes, by (destination device, rails).
_RoundTrips = dict[tuple[str, tuple[str, ...]], dict[int, Sequence[float]]]


def run_calibration(spec: RankSpec, emit: Callable[[RankEvent], None], on_lost: Lost) -> None:
    """on_lost: ends this process where another rank is lost. Raises ValueError (JobError,
    PlacementError) or OSError."""
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(1)
    if spec.backend == "nccl":
        os.environ.update(BEFORE_CUDA)
    placement = load_placement(Path(spec.placement_file))
    devices = calibrating_devices(placement)
    if len(devices) != spec.world_size or devices[spec.rank] != spec.device:
        raise JobError(f"rank {spec.rank} must be one of {', '.join(devices)}, in this order")
    store = open_store(spec)
    heart = Heart(spec, on_lost)
    heart.start()
    rails = tuple(rail.rail for rail in spec.rail_interfaces)
    every_pair = _messages(spec, placement, everybody(placement, rails), rails)
    transport = transport_of(spec, placement, every_pair)
    transport.met = heart.met
    structure, notes = placement.structure_hash, backend_notes(spec)
    emit(Started(rank=spec.rank, pid=os.getpid(), structure_hash=structure, notes=notes))
    connect(spec, placement, transport, store)
    limit_tcp_waits(spec.loss_seconds)
    trips = _Trips(spec, transport)
    measured = _measure(spec, placement, rails, trips, store)
    paths, due = tuple(_paths(spec, measured)), paths_from(spec.device, placement, rails)
    left_out, took = len(due) - len(paths), message_work(trips.work)
    emit(
        Calibrated(
            rank=spec.rank,
            paths=paths,
            left_out=left_out,
            message_seconds=None if took is None else took.seconds,
            message_seconds_per_byte=None if took is None else took.seconds_per_byte,
        )
    )
    transport.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    emit(Finished(rank=spec.rank, traffic=(), peak_memory_bytes=peak))
    heart.finish()


class _Trips:
    """One end of the round trips over a transport."""

    def __init__(self, spec: RankSpec, transport: GlooTransport | NcclTransport) -> None:
        self._transport = transport
        index = index_of(spec.device)
        self._device = (
            torch.device("cuda", index) if spec.backend == "nccl" else torch.device("cpu")
        )
        self._payload = torch.empty(0, dtype=torch.uint8)
        self._work: list[Work] = []

    @property
    def work(self) -> Sequence[Work]:
        """One entry for each exchange. On GPUs there is none: the processor's time says nothing of
        theirs."""
        return () if self._device.type == "cuda" else self._work

    def run(self, messages: RankMessages, *, is_source: bool) -> list[float]:
        """Runs one step of the transport. Returns each round trip's seconds, at its source."""
        sent = (message for some in messages.sends.values() for message in some)
        sends = sorted(sent, key=lambda message: message.index)
        receives = sorted(messages.receives, key=lambda message: message.index)
        most = max((message.bytes for message in sends), default=0)
        if self._payload.numel() < most:
            self._payload = torch.zeros(most, dtype=torch.uint8, device=self._device)
        self._transport.expect(messages)
        worked = time.process_time()
        self._transport.begin_step()
        seconds = []
        for ours, theirs in zip(sends, receives, strict=True):
            started = time.perf_counter()
            if is_source:
                self._transport.send(ours, self._payload[: ours.bytes])
            self._transport.receive(theirs)
            if self._device.type == "cuda":
                # So far only the device has waited for the message.
                torch.cuda.synchronize(self._device)
            seconds.append(time.perf_counter() - started)
            if not is_source:
                self._transport.send(ours, self._payload[: ours.bytes])
        self._transport.end_step()
        if sends:
            both = [message.bytes for message in (*sends, *receives)]
            self._work.append(Work(len(both), sum(both), time.process_time() - worked))
        return seconds


def _measure(
    spec: RankSpec, placement: Placement, rails: Sequence[str], trips: _Trips, store: TCPStore
) -> _RoundTrips:
    found: _RoundTrips = defaultdict(dict)
    until = time.monotonic() + LIMIT_SECONDS
    for number, exchange in enumerate(exchanges(placement, rails)):
        if not _goes_on(spec, store, number, until):
            break
        messages = _messages(spec, placement, exchange, rails)
        to = [b for a, b in exchange.bytes if a == spec.device]
        seconds = trips.run(messages, is_source=bool(to))
        for destination in to:
            size = exchange.bytes[spec.device, destination]
            found[destination, exchange.rails][size] = seconds[exchange.warm_up :]
    return found


def _goes_on(spec: RankSpec, store: TCPStore, number: int, until: float) -> bool:
    """Before each exchange rank 0 decides by its clock for all ranks."""
    key = f"exchange/{number}"
    if spec.rank == 0:
        store.set(key, _GO_ON if time.monotonic() < until else _ENOUGH)
    return await_key(store, spec, key, "rank 0 did not go on measuring") == _GO_ON


def _messages(
    spec: RankSpec, placement: Placement, exchange: Exchange, rails: Sequence[str]
) -> RankMessages:
    made = exchange_placement(placement, exchange)
    return rank_messages(made, spec.device, rails, spec.sockets_per_rail)


def _paths(spec: RankSpec, trips: _RoundTrips) -> Iterator[MeasuredPath]:
    for (destination, rails), seconds in trips.items():
        if len(seconds) < 3:
            continue  # time ran out before the larger sizes
        try:
            fit = fit_path(seconds)
        except ValueError:
            continue  # other work disturbed it, which must not end a job that can do without
        yield MeasuredPath(
            source=server_of(spec.device),
            destination=server_of(destination),
            rails=rails,
            setup_seconds=fit.setup_seconds,
            bits_per_second=fit.bits_per_second,
        )
