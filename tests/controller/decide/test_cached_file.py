"""A full disk leaves the file of the decision in force as it is, and is said; one command at a time
makes a file."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import placewire.controller.decide.decide as decide_module
from placewire.controller.decide.cached_file import made_by_one
from placewire.controller.decide.decide import PlacementDecision, decide
from placewire.controller.decide.traffic import decide_traffic
from placewire.controller.errors import PlacewireError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.job import TorchrunJob
from placewire.controller.plan.plan_file import parse_plan
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorRow, build_graph
from placewire.optimizer.placement import save_placement
from tests.controller.plans import placement, plan, plan_document


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process may become longer than 100 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_takes_no_allocation_away(tmp_path: Path) -> None:
    document = plan_document(2)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
    del document["solve"]
    script = plan(document)
    assert isinstance(script.job, TorchrunJob)
    file = decide_traffic(script, script.job, tmp_path / "cache").allocation_file
    before = file.read_text()
    with full_disk(), pytest.raises(PlacewireError, match="cache cannot be written") as raised:
        decide_traffic(script, script.job, tmp_path / "cache")
    assert raised.value.where == str(file) and "free space" in raised.value.remedy
    assert file.read_text() == before and list(file.parent.iterdir()) == [file]


async def test_a_file_is_made_by_one_at_a_time(tmp_path: Path) -> None:
    """flock is of an open file: so it is between two processes, too."""
    file, made, waits = tmp_path / "placement.json", list[str](), asyncio.Event()

    async def make(name: str) -> None:
        async with made_by_one(file, waits.set):
            if not file.is_file():
                await waits.wait()
                made.append(name)
                file.write_text(name)

    await asyncio.gather(make("first"), make("second"))
    assert made == ["first"] and file.read_text() == "first"


async def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lock(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    with pytest.raises(PlacewireError, match="No locks available") as raised:
        async with made_by_one(tmp_path / "placement.json", lambda: None):
            raise AssertionError("it is not locked")
    assert raised.value.where.endswith(".lock") and "--state-dir" in raised.value.remedy


async def test_a_file_in_the_place_of_the_cache_is_said(tmp_path: Path) -> None:
    in_its_place = tmp_path / "cache"
    in_its_place.touch()
    with pytest.raises(PlacewireError, match="cache cannot be written") as raised:
        await decide(plan(), tmp_path / "plan.yaml", NoLauncher(), in_its_place, print)
    assert raised.value.where == str(in_its_place) and "--state-dir" in raised.value.remedy


async def test_a_file_that_a_power_cut_left_empty_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [OperatorRow(id="a", type="any", seconds={"cpu": 0.01})]
    save_graph(build_graph(rows, []), tmp_path / "g.json")
    document = plan_document()
    document["job"] = {"kind": "replay", "graph": "g.json", "steps": 1}
    document["network"] = {"sharing": "job"}
    plan_file, cache = tmp_path / "plan.yaml", tmp_path / "cache"
    of, solved = parse_plan(document, str(plan_file), base=tmp_path), list[Path]()

    async def solve_into(file: Path, *_: object) -> None:
        solved.append(file)
        save_placement(placement(of, ()), file)

    monkeypatch.setattr(decide_module, "_solve_into", solve_into)

    async def decided() -> PlacementDecision:
        return await decide(of, plan_file, NoLauncher(), cache, lambda text: None)

    first = await decided()
    made = [first.scored_file, first.placement_file]
    for file in made:
        file.write_bytes(b"")
    assert await decided() == first and len(solved) == 2
    assert all(file.stat().st_size for file in made)
    assert await decided() == first and len(solved) == 2, "from the cache"
