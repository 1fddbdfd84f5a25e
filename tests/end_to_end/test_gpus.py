"""`controller init` and `doctor` on a lab whose agents find another `nvidia-smi` on their path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewire.controller.plan.plan_file import load_plan
from tests.controller.plans import plan_document
from tests.end_to_end.cluster import Finished, TestCluster

pytestmark = [pytest.mark.network, pytest.mark.lab, pytest.mark.slow]

SERVERS = ("s1", "s2")
MODEL = "placewire.examples.models.mlp:training_step"
A100 = "NVIDIA A100-SXM4-80GB, 81920, 00000000:{:02X}:00.0, {}"


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The script that the agents run in the place of nvidia-smi."""
    folder = tmp_path_factory.mktemp("driver")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield folder / "nvidia-smi"


@pytest.fixture(scope="module")
def lab(answer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    lab = TestCluster(f"gpu{os.getpid():07}", tmp_path_factory.mktemp("plans"))
    says(answer)
    done = lab.run("lab", "up", str(lab.plan(plan_document(len(SERVERS), name=lab.name), "lab")))
    try:
        assert done.code == 0, done.told
        yield lab
    finally:
        lab.run("lab", "down", lab.name)


def says(answer: Path, *lines: str, code: int = 0) -> None:
    """Sets what it says from now on; a hello asks, unless it was answered a second ago."""
    text = "\n".join(lines)
    answer.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
    answer.chmod(0o755)


def init(lab: TestCluster, name: str) -> Path:
    file = lab.folder / f"{name}.yaml"
    arguments = ("init", *SERVERS, "--lab", lab.name, "--out", str(file), "--model", MODEL)
    done = lab.run(*arguments)
    assert done.code == 0, done.told
    return file


def doctor(lab: TestCluster, plan: Path) -> Finished:
    return lab.run("doctor", str(plan), "--json")


def test_init_writes_the_gpus_of_each_server(lab: TestCluster, answer: Path) -> None:
    says(answer, A100.format(0x65, "Disabled"), A100.format(0xE5, "Disabled"))
    file = init(lab, "two")
    for server in load_plan(file).cluster.servers:
        assert [(d.type, d.memory_bytes) for d in server.devices] == [("a100", 72 * 2**30)] * 2
    assert file.read_text().count("# NVIDIA A100-SXM4-80GB, 90% of its 80 GiB") == 4
    says(answer, A100.format(0x65, "Enabled"), A100.format(0xE5, "Disabled"))
    done = doctor(lab, file)
    for name in SERVERS:
        told = [(f["where"], f["what"]) for f in done.document["servers"][name]]
        assert ("GPU 0 (NVIDIA A100-SXM4-80GB)", "is cut into instances by MIG") in told
        assert ("GPUs", "are 1 whole ones, the plan has 2") in told


def test_a_gpu_that_mig_cuts_is_left_out(lab: TestCluster, answer: Path) -> None:
    says(answer, A100.format(0x65, "Enabled"), A100.format(0xE5, "Disabled"))
    file = init(lab, "cut")
    assert [d.type for d in load_plan(file).cluster.servers[0].devices] == ["a100"]
    assert "# NVIDIA A100-SXM4-80GB is left out: MIG cuts it" in file.read_text()


def test_a_driver_that_fails_is_told(lab: TestCluster, answer: Path) -> None:
    says(answer, "NVIDIA-SMI has failed", code=9)
    file = init(lab, "failed")
    assert [d.type for d in load_plan(file).cluster.servers[0].devices] == ["cpu"]
    assert "# GPUs may be missing here. nvidia-smi failed: NVIDIA-SMI" in file.read_text()
    found = doctor(lab, file).document["servers"]["s1"]
    (one,) = [f for f in found if f["where"] == "GPUs"]
    assert one["severity"] == "note" and "nvidia-smi failed: NVIDIA-SMI has failed" in one["what"]
