"""Where a server's GPUs are not as the plan says, and which NICs are near them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from placewire.agent.contract.capabilities import Capabilities, Device
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.places import PciPlace
from placewire.agent.contract.state import LeaseState, NicFacts
from placewire.controller.verify.diagnosis import plan_findings
from tests.controller.plans import plan, plan_document

CPU = Device(name="cpu", memory_bytes=2**36)


def place(address: str, node: int | None = 0, *above: str) -> PciPlace:
    return PciPlace(address=address, numa_node=node, above=above)


# Two processors. On the first, GPU 0 and nic0 are beneath one switch, nic1 beneath its host bridge.
ONE_SWITCH = ("pci0000:60", "0000:60:01.0", "0000:61:00.0")
GPU_0 = place("0000:65:00.0", 0, *ONE_SWITCH, "0000:62:00.0")
GPU_1 = place("0000:e5:00.0", 1, "pci0000:e0", "0000:e0:01.0")
NIC_0 = place("0000:66:00.0", 0, *ONE_SWITCH, "0000:62:01.0")
NIC_1 = place("0000:6a:00.0", 0, "pci0000:60", "0000:60:02.0")
FAR = place("0000:ca:00.0", 1, "pci0000:c0", "0000:c0:01.0")


def gpu(at: PciPlace | None, **changes: Any) -> Device:
    return Device(name="NVIDIA A100", memory_bytes=80 * 2**30, place=at, **changes)


def nic(name: str, at: PciPlace | None, **changes: Any) -> NicFacts:
    addresses = {"nic0": ("10.7.0.1/24",), "nic1": ("10.7.1.1/24",)}.get(name, ())
    fields: dict[str, Any] = {
        "name": name, "mac": "02:00:00:00:00:01", "mtu_bytes": 1500, "up": True,
        "speed_bits_per_second": None, "driver": "mlx5_core", "rdma": False,
        "addresses": addresses, "bridge": None, "place": at,
    }  # fmt: skip
    return NicFacts(**{**fields, **changes})


def found(
    *devices: Device,
    nics: tuple[NicFacts, ...] = (nic("nic0", None), nic("nic1", None)),
    planned: tuple[str, ...] = ("a100", "a100"),
    problem: str = "",
    unread: bool = False,
    job: dict[str, Any] | None = None,
    hello: Mapping[str, Any] = MappingProxyType({}),
) -> list[tuple[str, str, str]]:
    document = plan_document(2)
    for server in document["cluster"]["servers"]:
        server["devices"] = [{"type": kind, "memory": "70GiB"} for kind in planned]
    document["job"] = job or document["job"]
    said = Hello(
        server="s1", agent_pid=1, lease=LeaseState(phase="idle", generation=0), **hello,
        capabilities=Capabilities(
            datapath="system", set_queue_honoured=True, open_vswitch_version="3.1.0",
            kernel_version="6.1", python_version="3.11", nics=nics, devices=devices,
            gpu_problem=problem, gpus_unread=unread,
        ),
    )  # fmt: skip
    (findings,) = plan_findings(plan(document), {"s1": said}).values()
    return [(one.severity, one.where, one.what) for one in findings]


def test_the_nic_beneath_the_same_switch_is_nearest_then_one_of_the_same_node() -> None:
    nics = (nic("nic0", NIC_0), nic("nic1", FAR))
    assert found(gpu(GPU_0), gpu(GPU_1), nics=nics) == [
        ("note", "GPU 0 (NVIDIA A100 at 0000:65:00.0, NUMA node 0)",
         "is nearest to nic0: beneath one PCI switch"),
        ("note", "GPU 1 (NVIDIA A100 at 0000:e5:00.0, NUMA node 1)",
         "is nearest to nic1: both on NUMA node 1"),
    ]  # fmt: skip
    (told, _) = found(gpu(GPU_0), gpu(GPU_1), nics=(nic("nic0", FAR), nic("nic1", NIC_1)))
    assert told[2] == "is nearest to nic1: beneath one host bridge"


def test_a_nearest_nic_that_is_not_in_the_plan_is_told_with_the_nodes() -> None:
    nics = (nic("nic0", NIC_0), nic("nic1", NIC_1), nic("ens9", FAR))
    (first, second) = found(gpu(GPU_0), gpu(GPU_1), nics=nics)
    assert first[2] == "is nearest to nic0: beneath one PCI switch"
    assert second[2] == (
        "is nearest to ens9, not in the plan: both on NUMA node 1; to nic0, nic1: NUMA node 1 to 0"
    )
    # What no plan could have is no choice.
    management = {"management": None, "management_interfaces": ("ens9",)}
    only = found(gpu(GPU_0), gpu(GPU_1), nics=nics, hello=management)[1]
    assert only[2] == "is nearest to nic0, nic1: NUMA node 1 to 0"
    assert found(gpu(GPU_0), gpu(GPU_1), nics=nics, hello={"protected": ("ens9",)})[1] == only


def test_where_places_are_not_known_nothing_is_said() -> None:
    assert found(gpu(None), gpu(None)) == []
    assert found(gpu(GPU_0), gpu(GPU_1)) == []
    unknown = place("0000:00:05.0", None, "pci0000:00")
    (told,) = found(gpu(unknown), gpu(None), nics=(nic("nic0", FAR), nic("nic1", None)))
    assert told[2] == "is nearest to nic0: its NUMA node is not known"


def test_a_gpu_that_mig_cuts_and_one_too_few() -> None:
    assert found(gpu(GPU_0, mig=True), gpu(None)) == [
        ("warning", "GPU 0 (NVIDIA A100 at 0000:65:00.0, NUMA node 0)",
         "is cut into instances by MIG"),
        ("warning", "GPUs", "are 1 whole ones, the plan has 2"),
    ]  # fmt: skip
    assert found(CPU, planned=("cpu",)) == []
    assert found(CPU) == [("warning", "GPUs", "are 0 whole ones, the plan has 2")]


def test_a_driver_that_does_not_answer_is_told_with_its_reason() -> None:
    told = ("warning", "GPUs", "are not all listed: nvidia-smi gave no answer in 20 s")
    assert found(CPU, problem="nvidia-smi gave no answer in 20 s") == [told]
    assert found(CPU, problem=told[2].partition(": ")[2], planned=("cpu",)) == [("note", *told[1:])]


def test_a_driver_that_has_not_answered_yet_is_no_missing_gpu() -> None:
    ((severity, where, what),) = found(CPU, unread=True)
    assert (severity, where) == ("warning", "GPUs") and what.startswith("are not read yet")
    assert [one[0] for one in found(CPU, unread=True, planned=("cpu",))] == ["note"]


@pytest.mark.parametrize(
    ("processes", "severity", "told"),
    [
        (1, "note", "is 1, and the plan has 2 GPUs on the server"),
        (2, None, ""),
        (3, "warning", "is 3, and the server has 2 whole GPUs"),
    ],
)
def test_a_script_s_processes_are_compared_with_the_gpus(
    processes: int, severity: str | None, told: str
) -> None:
    job = {"kind": "torchrun", "script": "examples/ddp.py", "processes": processes}
    assert found(gpu(None), gpu(None), job=job) == (
        [(severity, "job.processes", told)] if severity else []
    )
    assert found(CPU, planned=("cpu",), job=job) == []


def test_a_replay_needs_no_gpu() -> None:
    assert found(CPU, job={"kind": "replay", "graph": "pyproject.toml", "steps": 3}) == []
