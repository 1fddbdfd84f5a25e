"""DDP in slow motion: sleeps as long as a micro-batch takes, and sums gradients of all sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from placewire.examples import ddp_in_slow_motion
from placewire.examples.ddp_in_slow_motion import BYTES_PER_VALUE, slowed
from placewire.optimizer.graph.graph_file import save_graph
from tests.free_port import free_port
from tests.optimizer.peers.steps import (
    BACKWARD,
    FORWARD,
    LOSS,
    MODELS,
    UPDATE,
    WEIGHT,
    captured,
    chain,
    parameter_bytes,
)

LAYERS = 4


def test_it_takes_the_times_and_sizes_of_one_micro_batch() -> None:
    graph = chain(2)
    slow = slowed(graph, graph.device_types[0], 10.0, 2)
    assert slow.forward == pytest.approx((LAYERS * FORWARD + LOSS) / 100)
    assert [values * BYTES_PER_VALUE for values, _ in slow.gradients] == [WEIGHT] * LAYERS
    assert sum(seconds for _, seconds in slow.gradients) == pytest.approx(LAYERS * BACKWARD / 100)
    assert slow.after == pytest.approx(LAYERS * UPDATE / 100)


@pytest.mark.parametrize("model", MODELS)
def test_it_has_the_gradients_of_all_parameters(model: str) -> None:
    graph = captured(model, 2)
    slow = slowed(graph, graph.device_types[0], 1.0, 2)
    assert sum(values for values, _ in slow.gradients) * BYTES_PER_VALUE == parameter_bytes(graph)


def test_a_graph_that_does_not_fit_is_refused() -> None:
    graph = chain(2)
    with pytest.raises(ValueError, match="2 micro-batches, for 3 ranks; profile it with"):
        slowed(graph, graph.device_types[0], 1.0, 3)
    with pytest.raises(ValueError, match="no times of 'tpu'"):
        slowed(graph, "tpu", 1.0, 2)


def test_two_ranks_take_at_least_as_long_as_they_sleep(tmp_path: Path) -> None:
    graph, out = chain(2), tmp_path / "seconds"
    save_graph(graph, tmp_path / "step.json.gz")
    script = [
        ddp_in_slow_motion.__file__, str(tmp_path / "step.json.gz"), "--device-type",
        graph.device_types[0], "--time-scale", "10", "--steps", "2", "--out", str(out),
    ]  # fmt: skip
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, *script],
            env={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo",
            },
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    slept = (LAYERS * (FORWARD + BACKWARD + UPDATE) + LOSS) / 100
    assert float(out.read_text()) >= slept
