"""A profile that was made under a cgroup's limit says so; the cgroup is a folder of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.optimizer.profile.throttling import telling_of_throttling


def throttled(cgroup: Path, times: int) -> None:
    cgroup.mkdir(parents=True, exist_ok=True)
    (cgroup / "cpu.stat").write_text(
        f"usage_usec 9\nnr_periods 50\nnr_throttled {times}\nthrottled_usec 7\n"
    )


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own"
    file.write_text("1:cpu:/elsewhere\n0::/system.slice/job.service\n")
    throttled(tmp_path / "cgroup/elsewhere", 100)
    throttled(tmp_path / "cgroup/system.slice", 2)
    throttled(tmp_path / "cgroup/system.slice/job.service", 5)
    return file


@pytest.mark.parametrize("where", ["system.slice/job.service", "system.slice"])
def test_a_limit_of_the_own_cgroup_or_of_one_above_is_told(
    tmp_path: Path, own: Path, where: str
) -> None:
    said: list[str] = []
    with telling_of_throttling(said.append, own, tmp_path / "cgroup"):
        throttled(tmp_path / "cgroup" / where, 12)
    (words,) = said
    times = 7 if "job" in where else 10
    assert f"held this process back {times} times" in words and "cpu.max" in words


def test_what_happened_before_or_elsewhere_is_not_told(tmp_path: Path, own: Path) -> None:
    said: list[str] = []
    with telling_of_throttling(said.append, own, tmp_path / "cgroup"):
        throttled(tmp_path / "cgroup/elsewhere", 200)
    with telling_of_throttling(said.append, tmp_path / "none", tmp_path):
        pass
    own.write_text("0::/of/another/namespace\n")
    with telling_of_throttling(said.append, own, tmp_path / "cgroup"):
        pass
    assert said == []
