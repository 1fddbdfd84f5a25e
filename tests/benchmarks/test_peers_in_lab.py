"""The peers whose steps the job's benchmark replays: what runs in the lab is what was simulated."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.engine.parallelisms import PEERS
from benchmarks.job.peers import SETTING, peers_in_lab
from benchmarks.job.slow_motion import Placed
from placewire.optimizer.check.check import check
from placewire.optimizer.peers.beside_devices import COMMUNICATION
from placewire.optimizer.peers.compare import peers_of
from tests.optimizer.peers.steps import captured


@pytest.fixture(scope="module")
def placed() -> dict[str, Placed]:
    return peers_in_lab([captured("bert", count) for count in (4, 8)], SETTING)


def test_every_peer_passes_the_check(placed) -> None:
    assert set(placed) == set(PEERS)
    for one in placed.values():
        assert check(one.graph, one.placement) == ()


def test_what_a_collective_and_its_device_wait_for_is_sent(placed) -> None:
    for name in ("ddp", "fsdp"):
        graph, placement = placed[name].graph, placed[name].placement
        source, target, tensor = graph.edges
        collective = np.array([kind == COMMUNICATION for kind in graph.types])
        device = np.array([placement.operators[i] for i in graph.ids])
        waits = (collective[source] != collective[target]) & (device[source] != device[target])
        assert waits.any() and (graph.tensor_bytes[tensor[waits]] >= 1).all()
        sent = {(message.producer, message.destination) for message in placement.messages}
        for a, b in zip(source[waits].tolist(), target[waits].tolist(), strict=True):
            assert (graph.ids[a], device[b]) in sent


def test_the_step_in_the_lab_is_the_simulated_one_in_slow_motion(placed) -> None:
    """What a collective waits for takes a little longer, because it is a message there."""
    for step in peers_of([captured("bert", count) for count in (4, 8)], SETTING.fast, print):
        slow = placed[step.name].placement.step_seconds / SETTING.slower
        longer = slow / step.step_seconds - 1
        assert -0.001 < longer < (0.3 if step.name in ("ddp", "fsdp") else 0.001)
