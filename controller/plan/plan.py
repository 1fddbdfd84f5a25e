"""The plan as frozen types: what plan.yaml may say, one field at a time.

Its cluster, in the NICs' own (line) rates, is optimizer/cluster_plan/section.py; its job is
plan_job.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from placewire.controller.plan.job import Job, ReplayJob
from placewire.controller.plan.values import (
    EngineName,
    Floor,
    Fraction,
    Gap,
    Lease,
    MeasuredSeconds,
    PathText,
    PlanName,
    Seed,
    TcpPort,
    TimeLimit,
    Version,
)
from placewire.frozen import Frozen
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.cluster_plan.conversion import cluster_of
from placewire.optimizer.cluster_plan.section import ChosenRails, PlanCluster
from placewire.optimizer.cluster_plan.values import Flag, Text
from placewire.optimizer.names import DEFAULT_FLOOR, Backend, SharingName, is_cpu


class PlanLaunch(Frozen):
    """How ranks, and the programs that profile the model, are started on the servers, each reached
    at its management address. Without it they run in a lab, or not at all."""

    kind: Literal["ssh"] = Field(description="by what")
    user: Text | None = Field(
        None,
        description="who they run as there, without any privilege; none: who runs the controller",
    )
    port: TcpPort = Field(22, description="of sshd")
    key: PathText | None = Field(
        None,
        description="a private key file on the controller's machine; none: those of ssh, and "
        "ssh-agent",
    )
    known_hosts: PathText | None = Field(
        None,
        description="the file with the servers' host keys; a server whose key is not in it, or is "
        "another, is refused; none: `~/.ssh/known_hosts`",
    )


class PlanSolve(Frozen):
    """How long a placement is searched for. Not read by `kind: torchrun`."""

    engine: EngineName = Field(
        "auto",
        description="`auto` searches; `heft` is a list heuristic, `single` the best one device, "
        "`sequential` fills one device after the other; the others are methods of papers, which "
        "`optimizer engines` lists",
    )
    gap: Gap = Field(
        0.05,
        description="stop when the placement is proven to be at most this far from the best "
        "possible",
    )
    time_limit_seconds: TimeLimit = Field(
        alias="time_limit",
        default=60.0,
        description="how long is searched in all; under `sharing: auto` for all sharings together",
    )
    seed: Seed = Field(0, description="of the search")


class PlanVerify(Frozen):
    tolerance: Fraction = Field(
        0.10,
        description="how far a measured rate may be off its promise, and two frames more, which a "
        "measurement can miss",
    )
    seconds: MeasuredSeconds = Field(
        3.0,
        description="how long is measured; where a rate is missed, all are measured again, at most "
        "twice",
    )


class PlanNetwork(Frozen):
    """What may be done to the network."""

    sharing: Literal["auto", SharingName] = Field(
        "auto",
        description="what the network does with concurrent transfers; `auto` finds a placement "
        "for each and takes the best predicted",
    )
    floor: Floor = Field(
        DEFAULT_FLOOR,
        description="what the job is entitled to of each NIC when others want it too",
    )
    verify_settings: PlanVerify = Field(
        alias="verify", default=PlanVerify(), description="of the measurement before the job"
    )
    calibrate: Flag = Field(
        False,
        description="`true` measures set-up latency and throughput of every path through the job's "
        "own backend before the job",
    )
    on_exit: Literal["restore", "keep"] = Field(
        "restore",
        description="`restore` puts the network back after the job; `keep` leaves it until "
        "`controller destroy`",
    )
    drift: Literal["heal", "report"] = Field(
        "heal",
        description="what an agent does when somebody else changes our part of a server's network "
        "while it is in force: `heal` puts back what differs, `report` only tells of it",
    )
    rails: ChosenRails = Field(None, description="only these rails carry the job; none: all")
    lease_seconds: Lease = Field(
        alias="lease",
        default=30.0,
        description="for how long a running job keeps its network when its controller is gone; "
        "then the agents restore it and the ranks end",
    )


class Plan(Frozen):
    version: Annotated[Literal[1], Version] = Field(description="of this form")
    name: PlanName = Field(
        description="marks what the plan makes in Open vSwitch, and names its runs in the journal "
        "and its lab"
    )
    cluster: PlanCluster = Field(description="what there is")
    job: Job = Field(description="what shall run")
    launch: PlanLaunch | None = Field(
        None,
        description="how ranks are started on the servers; none: in a lab, or not at all "
        "(`apply --network-only`)",
    )
    solve: PlanSolve = Field(PlanSolve(), description="how a placement is searched for")
    network: PlanNetwork = Field(PlanNetwork(), description="what may be done to the network")

    @property
    def rails(self) -> tuple[str, ...]:
        """The rails that carry the job."""
        return self.network.rails or self.cluster.rails

    @property
    def backend(self) -> Backend:
        """What carries the job's messages; auto: NCCL where every device is CUDA's."""
        if isinstance(self.job, ReplayJob) or self.job.backend == "gloo":
            return "gloo"
        devices = [device for server in self.cluster.servers for device in server.devices]
        on_cuda = all(not is_cpu(device.type) for device in devices)
        return "nccl" if self.job.backend == "nccl" or on_cuda else "gloo"

    @property
    def payload_cluster(self) -> Cluster:
        """What the placement is found for: payload rates, of the rails that carry the job. Raises
        DocumentError while the set-up latency is yet to be measured."""
        return cluster_of(self.cluster, self.network.rails)
