"""Finds where the GPUs of a server are not as the plan says, and which NICs are near them. Pure.

What a GPU sends to a NIC of another NUMA node crosses the link between two processors. Beneath one
host bridge or PCI switch, its way is the shortest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placewire.agent.contract.capabilities import Device
from placewire.agent.contract.diagnosis import Finding
from placewire.agent.contract.messages import Hello
from placewire.agent.contract.places import PciPlace
from placewire.agent.contract.state import NicFacts
from placewire.optimizer.cluster_plan.section import PlanServer
from placewire.optimizer.names import is_cpu


def gpu_findings(server: PlanServer, hello: Hello, processes: int = 0) -> Iterator[Finding]:
    """processes: of a script that run on each server, with a GPU each; 0: another job."""
    wanted = [device for device in server.devices if not is_cpu(device.type)]
    found = hello.capabilities
    gpus = [device for device in found.devices if device.name != "cpu"]
    whole = [gpu for gpu in gpus if not gpu.mig]
    unknown = bool(found.gpu_problem) or found.gpus_unread
    if found.gpus_unread:
        yield Finding(
            severity="warning" if wanted else "note",
            what="are not read yet: NVIDIA's driver has not answered since the agent started",
            where="GPUs", why="the plan cannot be compared with the server yet",
            remedy="ask again in half a minute; by then the agent has it, or the reason why not",
        )  # fmt: skip
    if found.gpu_problem:
        yield Finding(
            severity="warning" if wanted else "note",
            what=f"are not all listed: {found.gpu_problem}", where="GPUs",
            why="the plan cannot be compared with the server, and ranks there may fail",
            remedy="nvidia-smi on that server says more; install or reload NVIDIA's driver",
        )  # fmt: skip
    for number, gpu in enumerate(gpus):
        if gpu.mig:
            yield Finding(
                severity="warning" if wanted else "note",
                what="is cut into instances by MIG", where=_name(number, gpu),
                why="a rank takes a whole GPU",
                remedy=f"nvidia-smi -i {number} -mig 0, and reset the GPU; or leave it out of the "
                "plan",
            )  # fmt: skip
    if len(wanted) > len(whole) and not unknown:
        yield Finding(
            severity="warning", where="GPUs",
            what=f"are {len(whole)} whole ones, the plan has {len(wanted)}",
            why="a rank would find no device", remedy="correct the plan's cluster",
        )  # fmt: skip
    if wanted and processes > len(whole) and not unknown:
        yield Finding(
            severity="warning", where="job.processes",
            what=f"is {processes}, and the server has {len(whole)} whole GPUs",
            why="a process may find no device",
            remedy=f"give job.processes {len(whole)}, if each process is to have a GPU",
        )  # fmt: skip
    elif processes and processes < len(wanted):
        yield Finding(
            severity="note", where="job.processes",
            what=f"is {processes}, and the plan has {len(wanted)} GPUs on the server",
            why="as many idle as no process uses", remedy="",
        )  # fmt: skip
    if wanted:
        yield from _nearest(server, hello, gpus)


def _nearest(server: PlanServer, hello: Hello, gpus: Sequence[Device]) -> Iterator[Finding]:
    planned = {nic.name for nic in server.nics}
    ports = [nic for nic in hello.capabilities.nics if nic.place and _could_carry(nic, hello)]
    for number, gpu in enumerate(gpus):
        at = gpu.place
        if gpu.mig or at is None or not any(nic.name in planned for nic in ports):
            continue
        nearness = {nic.name: _nearness(at, nic) for nic in ports}
        near = [nic for nic in ports if nearness[nic.name] == max(nearness.values())]
        ours = [nic for nic in near if nic.name in planned]
        where = _name(number, gpu)
        if ours:
            yield Finding(
                severity="note", where=where,
                what=f"is nearest to {_listed(ours)}: {_relation(at, ours[0])}",
                why="of the plan's NICs, what it sends has the shortest way to these", remedy="",
            )  # fmt: skip
        else:
            used = [nic for nic in ports if nic.name in planned]
            yield Finding(
                severity="note", where=where,
                what=f"is nearest to {_listed(near)}, not in the plan: "
                f"{_relation(at, near[0])}; to {_listed(used)}: "
                f"{_relation(at, max(used, key=lambda nic: nearness[nic.name]))}",
                why="what it sends has a longer way to the plan's NICs",
                remedy=f"plan {near[0].name}, if it reaches the other servers",
            )  # fmt: skip


def _could_carry(nic: NicFacts, hello: Hello) -> bool:
    """Whether a plan could have it."""
    management = nic.name in (hello.management_interfaces or ()) or any(
        address.split("/")[0] == hello.management for address in nic.addresses
    )
    return not management and nic.name not in hello.protected and nic.link_type == "ether"


def _nearness(gpu: PciPlace, nic: NicFacts) -> tuple[int, bool]:
    assert nic.place is not None
    one = gpu.numa_node
    return gpu.bridges_shared_with(nic.place), one is not None and one == nic.place.numa_node


def _relation(gpu: PciPlace, nic: NicFacts) -> str:
    assert nic.place is not None
    shared = gpu.bridges_shared_with(nic.place)
    if shared:
        return "beneath one PCI switch" if shared > 1 else "beneath one host bridge"
    nodes = gpu.numa_node, nic.place.numa_node
    if None in nodes:
        return "its NUMA node is not known"
    return (
        f"both on NUMA node {nodes[0]}"
        if nodes[0] == nodes[1]
        else (f"NUMA node {nodes[0]} to {nodes[1]}")
    )


def _name(number: int, gpu: Device) -> str:
    return f"GPU {number} ({gpu.name}{f' at {gpu.place.text}' if gpu.place else ''})"


def _listed(nics: Sequence[NicFacts]) -> str:
    return ", ".join(nic.name for nic in nics)
