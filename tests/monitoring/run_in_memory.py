"""An agent and a run of known values, behind the servers and sockets of the product.

One step takes STEP_SECONDS, twice what is predicted, and ends every TICK_SECONDS; the pair's queue
sends QUEUE_BYTES_PER_SECOND meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from placewire.agent.contract.config import AgentConfig
from placewire.agent.contract.measurement import InterfaceCounters, LinkMeasurement
from placewire.agent.contract.state import DriftState, LeaseState
from placewire.agent.drivers.queue_counters import QueueCounters
from placewire.agent.metrics.metrics import Known
from placewire.agent.metrics.metrics import exposition as of_agent
from placewire.agent.metrics.serving import serve_metrics
from placewire.controller.metrics.run_facts import RunFacts, StepFacts
from placewire.controller.metrics.run_state import RunState
from placewire.controller.metrics.serving import SOCKET, metrics_served
from placewire.job.contract.specification import Started, StepDone, Validated
from tests.agent.states import desired_state

TICK_SECONDS = 0.25
STEP_SECONDS, PREDICTED_SECONDS = 0.2, 0.1
QUEUE_BYTES_PER_SECOND = 1000.0
NIC_BYTES_PER_SECOND = 2500.0
LEASE_SECONDS, DRIFT_SECONDS = 25.0, 60.0
STEPS = 100_000
_INFO = {"server": "s1", "version": "0.1.0", "datapath": "netdev", "open_vswitch": "3.1.0"}
_FACTS = RunFacts(
    plan="test-plan", run="2026-11-28T10-00-00", kind="placed", sharing="guarantee",
    started_unix=1e9, devices=("s1/0", "s2/0"), memory_bytes=(1000, 1000), steps=STEPS, samples=8,
    predicted_step_seconds=PREDICTED_SECONDS,
    by_bucket={"": StepFacts(PREDICTED_SECONDS, {("s1", "s2", "nic0"): 100.0})},
)  # fmt: skip
_LINK = LinkMeasurement(
    source="s1", destination="s2", rail="a", nic="nic0", queue_id=2,
    promised_bits_per_second=8e6, at_most_bits_per_second=9e6, wire_bits_per_second=8.4e6,
    measured_bits_per_second=7.2e6, within_tolerance=True,
)  # fmt: skip


@contextmanager
def run_in_memory(folder: Path) -> Iterator[Mapping[str, Mapping[str, Path]]]:
    """Yields the sockets by their names, by job."""
    loop = asyncio.new_event_loop()
    ready, ending = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(_serve(folder, ready, ending),))
    thread.start()
    assert ready.wait(60)
    try:
        yield {
            "placewire-agent": {"s1": folder / "metrics.sock"},
            "placewire-run": {"controller": folder / SOCKET},
        }
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join()
        loop.close()


async def _serve(folder: Path, ready: threading.Event, ending: asyncio.Event) -> None:
    config = AgentConfig(
        server="s1", controller_url="https://x", certificate_file="", key_file="",
        authority_file="", state_dir=str(folder),
    )  # fmt: skip
    began, state = time.monotonic(), RunState()
    agent = await serve_metrics(config, lambda: of_agent(_known(time.monotonic() - began)))
    state.links = (_LINK,)
    state.begin(_FACTS, lambda: {("s1", "nic0"): int(NIC_BYTES_PER_SECOND)})
    for rank in range(len(_FACTS.devices)):
        state.event(Started(rank=rank, pid=1, structure_hash=""))
    async with metrics_served(state, folder, None, print):
        ready.set()
        step = 0
        while not ending.is_set():
            _step(state, step)
            step += 1
            await asyncio.sleep(max(0.0, began + step * TICK_SECONDS - time.monotonic()))
    await agent.close()


def _step(state: RunState, step: int) -> None:
    for rank in range(len(_FACTS.devices)):
        seconds = STEP_SECONDS / (1 + rank)
        metrics = {"accuracy": 0.5} if rank == 0 else {}
        state.event(
            StepDone(rank=rank, step=step, seconds=seconds, loss=2.5, metrics=metrics,
                     memory_bytes=400)
        )  # fmt: skip
    state.event(Validated(rank=0, step=step, batches=1, seconds=1, loss=2.75))


def _known(seconds: float) -> Known:
    desired = desired_state(3)
    sent = int(seconds * QUEUE_BYTES_PER_SECOND)
    queues = [QueueCounters(q.nic, q.queue_id, sent, 7, 3, 1514) for q in desired.queues]
    transmitted = int(seconds * NIC_BYTES_PER_SECOND)
    nics = [InterfaceCounters(interface=shaper.nic, transmit_bytes=transmitted, receive_bytes=9)
            for shaper in desired.shapers]  # fmt: skip
    lease = LeaseState(
        phase="committed",
        generation=3,
        plan_name="test-plan",
        expires_unix=time.time() + LEASE_SECONDS,
    )
    drift = DriftState(
        policy="report", drifts=2, since_unix=time.time() - DRIFT_SECONDS, notes=("a",)
    )
    return Known(_INFO, lease, desired, drift, queues, nics)
