"""GPUs as `nvidia-smi` tells them, for which a script stands in; and places, as sysfs does."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from placewire.agent.contract.places import PciPlace
from placewire.agent.drivers import devices, pci
from placewire.agent.drivers.devices import Found

TWO = """\
NVIDIA A100-SXM4-80GB, 81920, 00000000:65:00.0, Disabled
NVIDIA A100-SXM4-80GB, 81920, 00000000:E5:00.0, [N/A]
"""
Smi = Callable[[str], None]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """Sets what the command does, by a shell's script. Each start adds a line to `started`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(devices, "_driver", devices._Asking())
    monkeypatch.setattr(pci, "nvidia_gpus", lambda: ())

    def does(script: str) -> None:
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\n{script}\n")
        command.chmod(0o755)

    return does


def started(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "started").read_text().split()]


def test_each_gpu_has_name_and_memory(smi: Smi) -> None:
    smi(f"cat <<'END'\n{TWO}END")
    found = devices.devices()
    assert [(one.name, one.memory_bytes, one.mig) for one in found.devices] == [
        ("NVIDIA A100-SXM4-80GB", 80 * 2**30, False)
    ] * 2
    assert found.problem == ""


def test_where_mig_cuts_every_gpu_ranks_have_the_processor(smi: Smi) -> None:
    smi("echo 'NVIDIA H100, NVL, 95830, 00000000:65:00.0, Enabled'")
    gpu, cpu = devices.devices().devices
    assert (gpu.name, gpu.mig, cpu) == ("NVIDIA H100, NVL", True, devices.processor())


def test_without_a_driver_there_is_the_processor_alone(
    smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = Found((devices.processor(),), "")
    monkeypatch.setenv("PATH", "/nowhere")
    assert devices.devices() == none
    monkeypatch.setattr(pci, "nvidia_gpus", lambda: ("0000:65:00.0",))
    assert devices.devices().problem == (
        "NVIDIA's GPU at 0000:65:00.0: nvidia-smi is not installed on this server"
    )


def test_a_driver_that_fails_is_told_unless_there_is_no_gpu(
    smi: Smi, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi("echo 'NVIDIA-SMI has failed because it'; echo \"couldn't communicate\"; exit 9")
    assert devices.devices() == (
        (devices.processor(),),
        "nvidia-smi failed: NVIDIA-SMI has failed because it couldn't communicate",
    )
    smi("echo 'No devices were found'; exit 6")
    assert devices.devices().problem == ""
    monkeypatch.setattr(pci, "nvidia_gpus", lambda: ("0000:65:00.0",))
    assert "65:00.0: nvidia-smi failed: No devices" in devices.devices().problem
    smi("echo 'NVIDIA GB10, [N/A], 0000000F:01:00.0, [N/A]'")
    assert "does not tell the memory of NVIDIA GB10: [N/A]" in devices.devices().problem
    smi(f"cat <<'END'\n{TWO}END")
    assert devices.devices().problem.endswith("65:00.0: nvidia-smi does not list it")


def test_a_driver_that_hangs_is_waited_for_once_and_ended(
    smi: Smi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "ANSWER_SECONDS", 1.0)
    smi("sleep 100 & sleep 100")
    began = time.monotonic()
    assert devices.devices() == ((devices.processor(),), "nvidia-smi gave no answer in 1 s")
    assert time.monotonic() - began < 10
    (group,) = started(tmp_path)
    with pytest.raises(ProcessLookupError):
        for _ in range(100):  # A process that was killed is there until its parent has asked.
            os.killpg(group, 0)
            time.sleep(0.05)
    smi(f"cat <<'END'\n{TWO}END")
    assert devices.devices().problem == "nvidia-smi gave no answer in 1 s"
    assert started(tmp_path) == [group], "none is started so soon again"
    monkeypatch.setattr(devices._driver, "_again_at", 0.0)
    assert len(devices.devices().devices) == 2


def test_none_is_started_beside_one_that_cannot_be_ended(smi: Smi, tmp_path: Path) -> None:
    smi("exit 0")
    with subprocess.Popen(["sleep", "100"], text=True) as stuck:
        devices._driver._stuck = stuck
        assert devices.devices().problem == "nvidia-smi gave no answer in 20 s"
        stuck.kill()
    assert not (tmp_path / "started").exists()
    assert devices.devices().problem == ""


def test_places_are_read_from_sysfs(tmp_path: Path) -> None:
    root = tmp_path / "devices/pci0000:64"
    switch, gpu = root / "0000:64:00.0", root / "0000:64:00.0/0000:65:00.0"
    nic = switch / "0000:66:00.0"
    for folder, node in ((gpu, "1"), (nic, "-1")):
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (folder / "vendor").write_text("0x10de\n" if folder is gpu else "0x15b3\n")
        (folder / "class").write_text("0x030200\n" if folder is gpu else "0x020000\n")
        link = tmp_path / "bus/pci/devices" / folder.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
    virtio = nic / "virtio2"
    virtio.mkdir()
    for name, target in (("nic0", nic), ("eth0", virtio)):
        (tmp_path / "class/net" / name).mkdir(parents=True)
        (tmp_path / "class/net" / name / "device").symlink_to(target)
    (tmp_path / "class/net/veth0").mkdir()
    above = ("pci0000:64", "0000:64:00.0")
    at = PciPlace(address="0000:65:00.0", numa_node=1, above=above)
    assert pci.place_of("00000000:65:00.0", tmp_path) == at and at.text.endswith("NUMA node 1")
    of_nic = PciPlace(address="0000:66:00.0", above=above)
    assert pci.place_of_nic("nic0", tmp_path) == pci.place_of_nic("eth0", tmp_path) == of_nic
    assert at.bridges_shared_with(of_nic) == 2
    assert pci.place_of_nic("veth0", tmp_path) is pci.place_of_nic("gone", tmp_path) is None
    assert pci.place_of("../../..", tmp_path) is pci.place_of("00000000:99:00.0", tmp_path) is None
    assert pci.nvidia_gpus(tmp_path) == ("0000:65:00.0",)
