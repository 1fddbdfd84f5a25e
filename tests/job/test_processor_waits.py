"""Does a rank tell how long it waited for a processor?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from placewire.job.placed.processor_waits import ProcessorWaits
from placewire.optimizer.graph.graph_file import save_graph
from tests.job.graphs import fork_and_join
from tests.job.ranks import run_ranks
from tests.placements import cluster_of, placement_of

_BUSY = "while True: pass"


def _thread(folder: Path, number: int, waited_ns: int) -> None:
    (folder / str(number)).mkdir(exist_ok=True)
    (folder / str(number) / "schedstat").write_text(f"987654 {waited_ns} 12\n")


def test_what_waited_before_the_second_step_and_what_waits_at_once_counts_once(
    tmp_path: Path,
) -> None:
    _thread(tmp_path, 1, 5_000_000_000)
    waits = ProcessorWaits(tmp_path)
    assert waits.share is None
    waits.after_first_step()
    began = time.monotonic()
    time.sleep(0.05)
    _thread(tmp_path, 1, 5_010_000_000)
    _thread(tmp_path, 2, 8_000_000)
    share = waits.share
    assert share is not None
    assert 0.01 / (time.monotonic() - began) <= share * 1.001 < 0.011 / 0.05


def test_a_kernel_that_does_not_count_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    waits = ProcessorWaits(tmp_path)
    waits.after_first_step()
    assert waits.share is None


def test_a_machine_without_proc_tells_nothing(tmp_path: Path) -> None:
    waits = ProcessorWaits(tmp_path / "none")
    waits.after_first_step()
    assert waits.share is None


def test_a_thread_beside_another_on_one_processor_waits() -> None:
    processor = min(os.sched_getaffinity(0))
    pinned = ["taskset", "--cpu-list", str(processor), sys.executable, "-c"]
    with subprocess.Popen([*pinned, _BUSY]) as other:
        try:
            told = subprocess.run([*pinned, _MEASURED], stdout=subprocess.PIPE, check=True)
        finally:
            other.kill()
    # Half of the time, and more where this machine has other work.
    assert float(told.stdout) > 0.3


_MEASURED = """
import time
from placewire.job.placed.processor_waits import ProcessorWaits
waits = ProcessorWaits()
waits.after_first_step()
began = time.monotonic()
while time.monotonic() < began + 1:
    pass
print(waits.share)
"""


def test_a_rank_tells_it(tmp_path: Path) -> None:
    graph, file = fork_and_join(), tmp_path / "graph.json"
    save_graph(graph, file)
    alone = placement_of(graph, cluster_of(1), dict.fromkeys(graph.ids, "s1/0"))
    fields: dict[str, Any] = {"kind": "replay", "graph_file": str(file)}
    (rank,) = run_ranks(alone, tmp_path, (), **fields, steps=3)
    assert rank.finished.processor_wait is not None
    (rank,) = run_ranks(alone, tmp_path, (), **fields, steps=1)
    assert rank.finished.processor_wait is None, "one step warms up"
