"""Checks a parsed plan as a whole: bridge names, the job's files and settings, traffic.

Each check yields (YAML path, message). Single values are checked when they are parsed (values.py),
the cluster in optimizer/cluster_plan/checks.py.
"""

from __future__ import annotations

import importlib.machinery
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from placewire.agent.contract.entries import bridge_name
from placewire.controller.plan.model_source import binds, locate_module
from placewire.job.contract.interpreter import runs_modules
from placewire.job.contract.rdma import rdma_choices
from placewire.optimizer.capture.errors import CaptureError
from placewire.optimizer.capture.learning_rate_schedule import LearningRateSchedule
from placewire.optimizer.capture.optimizer_options import options_of
from placewire.optimizer.cluster_plan.checks import cluster_mistakes, nics_by_server
from placewire.optimizer.cluster_plan.documents import Mistake
from placewire.optimizer.cluster_plan.values import MEASURED, shown
from placewire.optimizer.names import is_cpu

if TYPE_CHECKING:
    from placewire.controller.plan.job import Job, PlacedJob, TorchrunJob
    from placewire.controller.plan.job_optimizer import PlanOptimizer, PlanParameterGroup
    from placewire.controller.plan.plan import Plan, SshLaunch
    from placewire.optimizer.cluster_plan.section import PlanNic


_MODULE_HINT = "; for a module, as torchrun's -m, end job.python with -m: [python3, -m]"


def mistakes_of(plan: Plan, base: Path, *, runs_job: bool = True) -> Iterator[Mistake]:
    """base: a second folder, after the working directory, to look for the job's relative files.
    runs_job: whether its files must be there, and ranks could start; what a plan made is undone
    without that, too."""
    yield from cluster_mistakes(plan.cluster, plan.network.rails)
    for server, nics in nics_by_server(plan.cluster):
        yield from _bridge_mistakes(server.name, [(f"{path}.name", nic) for path, nic in nics])
    yield from _job_mistakes(plan.job)
    if plan.launch is not None:
        yield from _workdir_mistakes(plan.job)
    if runs_job:
        yield from _file_mistakes(plan, base)
        yield from _run_mistakes(plan)
    yield from _network_mistakes(plan)
    if plan.job.kind == "placed":
        yield from _device_mistakes(plan)
    if plan.job.kind == "torchrun":
        yield from _traffic_mistakes(plan, plan.job)


def _traffic_mistakes(plan: Plan, job: TorchrunJob) -> Iterator[Mistake]:
    rails = {s.name: {n.rail for n in s.nics} & set(plan.rails) for s in plan.cluster.servers}
    for source, row in job.traffic.items():
        for server in (source, *row):
            if server not in rails:
                yield "job.traffic", f"{shown(server)} is no server of this plan"
        if source in row:
            yield f"job.traffic.{source}", "a server sends nothing to itself; leave it out"
        for destination, weight in row.items():
            if weight and not rails.get(source, set()) & rails.get(destination, set()):
                yield f"job.traffic.{source}", f"{source} shares no rail with {destination}"
    if job.traffic and not any(any(row.values()) for row in job.traffic.values()):
        yield "job.traffic", "nobody sends anything; leave traffic out, or give 'even'"
    if not set.intersection(*rails.values()):
        yield "cluster.servers", "a script needs one rail that is on every server; there is none"
    if plan.network.calibrate:
        yield "network.calibrate", "measures messages of a placed job; leave it out for a script"


def _run_mistakes(plan: Plan) -> Iterator[Mistake]:
    if plan.job.kind == "torchrun":
        yield from _interface_mistakes(plan, plan.job)
    if plan.job.kind != "placed" or plan.job.profile is not None:
        return
    for server in plan.cluster.servers:
        kinds = sorted({device.type for device in server.devices if not is_cpu(device.type)})
        if len(kinds) > 1:
            yield (
                "cluster.servers",
                f"{server.name} has {' and '.join(map(shown, kinds))}: a profile measures the "
                "first GPU of a server, so all of them must be of one type; list those of one",
            )


def _interface_mistakes(plan: Plan, job: TorchrunJob) -> Iterator[Mistake]:
    """A NIC's address is on its bridge while the plan is in force."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        chosen = job.env.get(name, "")
        if chosen.startswith("^"):  # It names those that are not to be used.
            continue
        names = chosen.removeprefix("=").split(",")
        for server in plan.cluster.servers:
            taken = [n.name for n in server.nics if n.rail in plan.rails and n.name in names]
            if taken:
                yield (
                    f"job.env.{name}",
                    f"on {server.name}, {taken[0]} has no address while the plan is in force, but "
                    f"{bridge_name(taken[0])} has it; leave it out, so that every rail is used",
                )
                break


def _bridge_mistakes(server: str, nics: list[tuple[str, PlanNic]]) -> Iterator[Mistake]:
    """On a server, no two NICs or bridges may have the same name."""
    taken: dict[str, str] = {}
    for path, nic in nics:
        taken.setdefault(nic.name, path)
    for path, nic in nics:
        bridge = bridge_name(nic.name)
        if taken[nic.name] == path and taken.setdefault(bridge, path) != path:
            yield (
                path,
                f"on server {server}, the bridge over {nic.name} would be called {bridge!r}, a "
                f"name that {taken[bridge]} takes; rename one of the NICs",
            )


def _device_mistakes(plan: Plan) -> Iterator[Mistake]:
    """torch captures other operators on GPUs, so that one graph is for CPUs or for GPUs."""
    devices = [(s.name, d.type) for s in plan.cluster.servers for d in s.devices]
    cpu = next((one for one in devices if is_cpu(one[1])), None)
    gpu = next((one for one in devices if not is_cpu(one[1])), None)
    if cpu and gpu:
        yield (
            "cluster.servers",
            f"a placed job runs on CPUs or on GPUs, and {cpu[0]} has {shown(cpu[1])}, {gpu[0]} "
            f"{shown(gpu[1])}; list servers of one kind, or give all {{type: cpu, memory: …}}",
        )


def _network_mistakes(plan: Plan) -> Iterator[Mistake]:
    """Checks what the job expects of devices, NICs and latency."""
    cpus = ((s.name, d.type) for s in plan.cluster.servers for d in s.devices if is_cpu(d.type))
    if plan.job.backend == "nccl" and (found := next(cpus, None)):
        yield (
            "job.backend",
            f"nccl needs a CUDA device for every rank, and {found[0]} has {shown(found[1])}; "
            "accepted here: 'auto' or 'gloo'",
        )
    for name in rdma_choices(plan.job.env):
        yield (
            f"job.env.{name}",
            f"{shown(plan.job.env[name])} would make the job use RDMA, which passes by every "
            "queue, so no rate could be promised; leave it out",
        )
    # A replay waits as long as the set-up latency of the cluster that it stands for.
    if plan.job.kind != "placed" and plan.cluster.setup_latency_seconds is None:
        yield "cluster.setup_latency", f"{MEASURED} is for kind: placed; give a time, like 50us"


def _file_mistakes(plan: Plan, base: Path) -> Iterator[Mistake]:
    job = plan.job
    if job.kind == "replay" and not any(
        _exists(root / job.graph, Path.is_file) for root in (Path.cwd(), base)
    ):
        yield "job.graph", f"{shown(job.graph)} is no file (looked in {Path.cwd()}, {base})"
    if (
        job.kind == "placed"
        and job.profile is not None
        and not any(_exists(root / job.profile, Path.is_file) for root in (Path.cwd(), base))
    ):
        yield "job.profile", f"{shown(job.profile)} is no file (looked in {Path.cwd()}, {base})"
    if plan.launch is None:
        yield from _code_mistakes(job, base)
        if job.kind == "placed" and job.state and not _exists(Path(job.state.file), Path.exists):
            yield "job.state.file", f"{shown(job.state.file)} is no file or folder"
    else:
        yield from _ssh_file_mistakes(plan.launch)


def _optimizer_mistakes(optimizer: PlanOptimizer) -> Iterator[Mistake]:
    """Options of a `module:Class` are checked later, by the process that captures the model."""
    if optimizer.name in ("adam", "adamw") and optimizer.momentum is not None:
        yield (
            "job.optimizer.momentum",
            f"{optimizer.name} takes no momentum; leave it out, or choose sgd",
        )
    where: dict[str, PlanOptimizer | PlanParameterGroup] = {"job.optimizer": optimizer}
    where |= {f"job.optimizer.groups[{k}]": one for k, one in enumerate(optimizer.groups)}
    for path, one in where.items():
        for key in ("lr", "momentum", "weight_decay"):
            if key in one.options:
                yield f"{path}.options.{key}", f"give it as {path}.{key}"
        try:
            options_of(optimizer.name, one.options)
        except CaptureError as error:
            yield f"{path}.options", str(error)


def _job_mistakes(job: Job) -> Iterator[Mistake]:
    if job.kind == "torchrun" and runs_modules(job.python_words):
        yield from _module_mistakes(job.script)
    if job.kind != "placed":
        return
    yield from _optimizer_mistakes(job.optimizer)
    try:
        LearningRateSchedule(**job.optimizer_document["schedule"])
    except CaptureError as error:
        yield "job.optimizer.schedule", str(error)
    if job.accumulate != "auto" and job.batch % job.accumulate:
        yield (
            "job.accumulate",
            f"{job.batch} samples cannot be cut into {job.accumulate} equal micro-batches; give a "
            "number that divides job.batch",
        )
    if job.shards not in (1, "auto") and job.optimizer.clip_norm is not None:
        yield (
            "job.shards",
            "job.optimizer.clip_norm needs the norm of each whole gradient; leave one of them out",
        )
    for key in ("accumulate", "shards", "recompute") if job.profile is not None else ():
        if getattr(job, key) == "auto":
            yield (
                f"job.{key}",
                "with job.profile there is one step, and nothing to choose; give what the profile "
                "was made with, which `controller evaluate` takes under the same name",
            )
    if job.autocast == "fp16" and job.optimizer.scaler is None:
        yield (
            "job.autocast",
            "small gradients vanish in fp16 where the loss is not scaled; give "
            "job.optimizer.scaler, which may be {}, or bf16, which needs no scaler",
        )
    if _model_path(job) is None:
        yield "job.model", f"{shown(job.model)} is no model path; give package.module:function"


def _module_mistakes(script: str) -> Iterator[Mistake]:
    if "/" in script or script.startswith(".") or script.endswith(".py"):
        relative = PurePosixPath(script).name if script.startswith("/") else script
        name = relative.removesuffix(".py").lstrip("./").replace("/", ".")
        yield (
            "job.script",
            f"{shown(script)} is no module, which job.python runs, as it ends with -m; give the "
            f"module's name, {shown(name)}",
        )


def _model_path(job: PlacedJob) -> tuple[str, str] | None:
    """(module, function) of job.model; None where it does not name both."""
    module, _, function = job.model.partition(":")
    named = all(part.isidentifier() for part in (*module.split("."), function))
    return (module, function) if named else None


def _ssh_file_mistakes(launch: SshLaunch) -> Iterator[Mistake]:
    """The launcher checks the servers' own files later, before anything is changed."""
    for name in ("key", "known_hosts"):
        path: str | None = getattr(launch, name)
        if path is not None and not _exists(Path(path), lambda one: one.expanduser().is_file()):
            yield f"launch.{name}", f"{shown(path)} is no file on this machine"


def _workdir_mistakes(job: Job) -> Iterator[Mistake]:
    if job.workdir is not None and not job.workdir.startswith("/"):
        yield (
            "job.workdir",
            f"{shown(job.workdir)} is no absolute path; with `launch` it must name a folder on "
            "every server",
        )


def _code_mistakes(job: Job, base: Path) -> Iterator[Mistake]:
    """Without `launch` ranks run on this machine, so the job's code must be here."""
    if job.workdir is not None and not _exists(Path(job.workdir), Path.is_dir):
        yield "job.workdir", f"{shown(job.workdir)} is no folder; ranks start and import there"
    # A command in front of the interpreter may begin it in a container, which has other files.
    if job.kind == "torchrun" and len(job.python_words) <= 1:
        folder = Path(job.workdir or Path.cwd())
        if not _exists(folder / job.script, Path.is_file):
            hint = "" if "/" in job.script or job.script.endswith(".py") else _MODULE_HINT
            yield "job.script", f"{shown(job.script)} is no file (looked in {folder}){hint}"
    if job.kind != "placed" or (path := _model_path(job)) is None:
        return
    module, function = path
    roots = [job.workdir or str(Path.cwd()), str(base)]
    source = locate_module(module, roots)
    if source is None:
        yield "job.model", f"module {shown(module)} is not found in {', '.join(roots)} or sys.path"
        return
    if source.suffix not in importlib.machinery.SOURCE_SUFFIXES:
        yield "job.model", f"{source} is no Python source; name a module that is"
        return
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        yield "job.model", f"{source} cannot be read: {error.strerror}"
        return
    if not binds(text, function):
        yield "job.model", f"{source} has no function {shown(function)} at its top level"


def _exists(path: Path, kind: Callable[[Path], bool]) -> bool:
    """False also where the name is too long for a file, its folder cannot be entered, or the user
    of `~user` is not known."""
    try:
        return kind(path)
    except (OSError, RuntimeError):
        return False
