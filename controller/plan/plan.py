"""plan.yaml as frozen types: its sections `launch`, `solve` and `network`, and the whole plan.

The section `job` is in job.py. The section `cluster`, which states the NICs' line rates, is in
optimizer/cluster_plan/section.py. docs/reference/plan-yaml.md is made from all of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from placewire.controller.plan.job import Job, ReplayJob
from placewire.controller.plan.values import (
    LOW_LATENCY_DATA,
    Dscp,
    EngineName,
    Floor,
    Fraction,
    Gap,
    Lease,
    MeasuredSeconds,
    PlanName,
    Seed,
    SshPath,
    TcpPort,
    TimeLimit,
    UserName,
    Version,
)
from placewire.frozen import Frozen
from placewire.optimizer.cluster import Cluster
from placewire.optimizer.cluster_plan.conversion import cluster_of
from placewire.optimizer.cluster_plan.section import ChosenRails, PlanCluster
from placewire.optimizer.cluster_plan.values import Flag
from placewire.optimizer.names import DEFAULT_FLOOR, Backend, SharingName, is_cpu


class SshLaunch(Frozen):
    """How ranks, and the programs that profile the model, are started on the servers, each reached
    at its management address. What is left out here is as `ssh` of that address has it: as
    `~/.ssh/config` and `/etc/ssh/ssh_config` on the controller's machine say, jump hosts included.
    Without this section ranks run in a lab, or not at all, and outside a lab the model is measured
    on the controller's machine."""

    kind: Literal["ssh"] = Field(description="what starts them")
    user: UserName | None = Field(
        None,
        description="the user, without any privilege, that they run as; none: the user that ssh "
        "takes, which is the one who runs the controller unless its configuration names another; "
        "but not root, who must be named here",
    )
    port: TcpPort | None = Field(
        None, description="the TCP port of sshd; none: the one that ssh takes, usually 22"
    )
    key: SshPath | None = Field(
        None,
        description="a private key file on the controller's machine, used alone, from ssh-agent "
        "where it needs a passphrase; none: those that ssh takes (`IdentityFile`), and those in "
        "ssh-agent, with `IdentitiesOnly` only the same ones",
    )
    known_hosts: SshPath | None = Field(
        None,
        description="the file with the servers' host keys, used alone; a server with an unknown or "
        "a different key is refused; none: those that ssh takes, usually `~/.ssh/known_hosts` and "
        "`/etc/ssh/ssh_known_hosts`",
    )


class PlanSolve(Frozen):
    """How a placement is searched for. A job of `kind: torchrun` does not read this section."""

    engine: EngineName = Field(
        "auto",
        description="`auto` searches; `heft` is a list heuristic, `single` takes the best single "
        "device, `sequential` fills one device after the other; `optimizer engines` lists all, "
        "published methods among them",
    )
    gap: Gap = Field(
        0.05,
        description="the search stops when its placement is proven to be at most this far from the "
        "best possible",
    )
    time_limit_seconds: TimeLimit = Field(
        alias="time_limit",
        default=60.0,
        description="how long the search may take; under `sharing: auto`, for all sharings "
        "together",
    )
    seed: Seed = Field(0, description="the random seed of the search")


class PlanVerify(Frozen):
    tolerance: Fraction = Field(
        0.10,
        description="how far a measured rate may be from its promise, beside two frames that a "
        "measurement can miss",
    )
    seconds: MeasuredSeconds = Field(
        3.0,
        description="how long rates are measured; where one is missed, all are measured again, at "
        "most twice",
    )


class PlanNetwork(Frozen):
    """How the network is shaped, measured and put back."""

    sharing: Literal["auto", SharingName] = Field(
        "auto",
        description="what the network does with concurrent transfers; `auto` finds a placement for "
        "each sharing and takes the one with the shortest predicted step",
    )
    floor: Floor = Field(
        DEFAULT_FLOOR,
        description="the part of each NIC that a shaped network keeps for the job",
    )
    verify_settings: PlanVerify = Field(
        alias="verify",
        default=PlanVerify(),
        description="how promised rates are measured before the job",
    )
    calibrate: Flag = Field(
        False,
        description="`true` measures, before the job, set-up latency and throughput of every path "
        "through the job's own backend",
    )
    on_exit: Literal["restore", "keep"] = Field(
        "restore",
        description="`restore` puts the network back after the job; `keep` leaves it until "
        "`controller destroy`",
    )
    drift: Literal["heal", "report"] = Field(
        "heal",
        description="what an agent does when somebody else changes Placewire's part of a server's "
        "network while it is in force: `heal` puts it back, `report` only reports the change",
    )
    rails: ChosenRails = Field(None, description="the rails that carry the job; none: all rails")
    acknowledgement_dscp: Dscp = Field(
        LOW_LATENCY_DATA,
        description="the DSCP (0 to 63) of packets with which a rank acknowledges what it receives "
        "over gloo: in switches that trust it they overtake data, for which a sender would wait "
        "otherwise; 0 marks none",
    )
    lease_seconds: Lease = Field(
        alias="lease",
        default=30.0,
        description="how long a running job keeps its network after its controller is gone; then "
        "the agents restore the network and the ranks end",
    )


class Plan(Frozen):
    version: Annotated[Literal[1], Version] = Field(description="the version of this format")
    name: PlanName = Field(
        description="the plan's name, which marks what the plan makes in Open vSwitch, and names "
        "its runs in the journal and its lab"
    )
    cluster: PlanCluster = Field(description="the servers, their devices and their NICs")
    job: Job = Field(description="what runs")
    launch: SshLaunch | None = Field(
        None,
        description="how ranks are started on the servers; none: ranks run in a lab, or not at all "
        "(`apply --network-only`)",
    )
    solve: PlanSolve = Field(PlanSolve(), description="how a placement is searched for")
    network: PlanNetwork = Field(
        PlanNetwork(), description="how the network is shaped, measured and put back"
    )

    @property
    def rails(self) -> tuple[str, ...]:
        """The rails that carry the job."""
        return self.network.rails or self.cluster.rails

    @property
    def backend(self) -> Backend:
        """What carries the job's messages. `auto` is NCCL where every device is CUDA's."""
        if isinstance(self.job, ReplayJob) or self.job.backend == "gloo":
            return "gloo"
        devices = [device for server in self.cluster.servers for device in server.devices]
        on_cuda = all(not is_cpu(device.type) for device in devices)
        return "nccl" if self.job.backend == "nccl" or on_cuda else "gloo"

    @property
    def payload_cluster(self) -> Cluster:
        """The cluster that a placement is searched for: payload rates of the rails that carry the
        job. Raises DocumentError where the set-up latency was not measured yet."""
        return cluster_of(self.cluster, self.network.rails)
