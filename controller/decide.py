"""plan.yaml to a placement: capture and profile (or a graph file), then solve, each cached.

Capture, profile and solve run as processes of their own: the user's model is imported by none of
ours, an interrupt ends them at once, and the controller stays light. A cached answer is used again
only while everything that it was made from is the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from controller.errors import InfeasiblePlacement, PlacewireError, PlanError
from controller.plan import PlacedJob, Plan, ReplayJob
from optimizer.names import Sharing, is_cpu

if TYPE_CHECKING:
    from optimizer.cluster import Cluster
    from optimizer.placement import Placement

Say = Callable[[str], None]

# Of the time under `sharing: auto`, what the comparison with one NIC takes.
_ONE_NIC_PART = 0.15


@dataclass(frozen=True)
class Decision:
    """placement is the best predicted of considered, which holds one per sharing that was tried;
    one_nic: the best over a single rail, unshaped, for comparison.

    graph_file: the operator graph that ranks are given; for a replay the user's, not slowed.
    scored_file: the graph that the placement is for; for a replay the slowed one.
    """

    graph_file: Path
    scored_file: Path
    placement_file: Path
    placement: Placement
    considered: tuple[Placement, ...]
    one_nic: Placement | None = None

    @property
    def compared(self) -> tuple[Placement, ...]:
        """All that was searched for, what is shown for comparison last."""
        return self.considered if self.one_nic is None else (*self.considered, self.one_nic)

    @property
    def graph_notes(self) -> Mapping[str, Any]:
        """What capture wrote of the graph: which operators are its loss and inputs. Reads the
        file."""
        from optimizer.graph import read_json

        notes: Mapping[str, Any] = read_json(self.graph_file)["notes"]
        return notes


async def decide(plan: Plan, plan_file: Path, cache: Path, say: Say) -> Decision:
    """Raises InfeasiblePlacement where nothing fits, PlanError where the job cannot be read."""
    from optimizer.placement import load_placement

    cache.mkdir(parents=True, exist_ok=True)
    graph_file, scored_file = await _graphs(plan, plan_file, cache, say)
    cluster, limit = plan.payload_cluster, plan.solve.time_limit_seconds
    if isinstance(plan.job, ReplayJob):
        cluster = slowed(cluster, plan.job.time_scale)
    if plan.network.sharing != "auto":
        file = await _solve(plan, scored_file, cluster, plan.network.sharing, limit, cache, say)
        placement = load_placement(file)
        return Decision(graph_file, scored_file, file, placement, (placement,))
    alone = _over_one_rail(cluster) if plan.solve.engine != "single" else None
    searched = limit if alone is None else limit * (1 - _ONE_NIC_PART)
    file = await _solve(plan, scored_file, cluster, "auto", searched, cache, say)
    one_nic = None
    if alone is not None:
        limit -= searched
        one_nic = await _solve(plan, scored_file, alone, "unshaped", limit, cache, say)
    each = [_each_folder(file) / f"{sharing}.json" for sharing in get_args(Sharing)]
    considered = tuple(load_placement(one) for one in each if one.is_file())
    taken = load_placement(file).sharing
    return Decision(
        graph_file,
        scored_file,
        file,
        next(one for one in considered if one.sharing == taken),
        considered,
        None if one_nic is None else load_placement(one_nic),
    )


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """What a replay emulates beside its operators: messages take so many times longer to set up,
    and to travel inside a server. NICs are what they are."""
    return cluster.model_copy(
        update={
            "setup_latency_seconds": cluster.setup_latency_seconds * factor,
            "intra_server_bits_per_second": cluster.intra_server_bits_per_second / factor,
        }
    )


def _over_one_rail(cluster: Cluster) -> Cluster | None:
    """The same servers with only their fastest rail; None where there are not two."""
    if len(cluster.rails) < 2:
        return None
    total = cluster.nic_rates.sum(axis=0).tolist()
    rail = cluster.rails[total.index(max(total))]
    servers = tuple(
        server.model_copy(update={"nics": tuple(nic for nic in server.nics if nic.rail == rail)})
        for server in cluster.servers
    )
    return cluster.model_copy(update={"servers": servers})


async def _graphs(plan: Plan, plan_file: Path, cache: Path, say: Say) -> tuple[Path, Path]:
    """(what ranks are given, what the placement is found for): apart for a replay only, whose
    ranks slow the user's graph down themselves."""
    if isinstance(plan.job, ReplayJob):
        return await asyncio.to_thread(_replay_graphs, plan.job, plan_file, cache)
    device_types = dict.fromkeys(d.type for s in plan.cluster.servers for d in s.devices)
    for server, device_type in ((s.name, d.type) for s in plan.cluster.servers for d in s.devices):
        if not is_cpu(device_type):
            raise PlanError(
                str(plan_file),
                [
                    (
                        f"cluster.servers ({server})",
                        f"there is no profile for device type {device_type!r}: this release "
                        "measures CPUs only; give a graph file with its times (job.kind: replay)",
                    )
                ],
            )
    if len(device_types) > 1:
        raise PlanError(
            str(plan_file),
            [
                (
                    "cluster.servers",
                    f"device types {', '.join(device_types)}: this release measures one CPU type "
                    "per plan; use one type, or a graph file that holds the times of each",
                )
            ],
        )
    graph = await _profiled_graph(plan.job, plan_file, next(iter(device_types)), cache, say)
    return graph, graph


async def _profiled_graph(
    job: PlacedJob, plan_file: Path, device_type: str, cache: Path, say: Say
) -> Path:
    question = {
        "model": job.model,
        "batch": job.batch,
        "accumulate": job.accumulate,
        "autocast": job.autocast,
        "optimizer": job.optimizer_document,
        "seed": job.seed,
        "threads": job.threads,
        "device_type": device_type,
        "processor": processor_model(),
        "torch": importlib.metadata.version("torch"),
        "roots": import_roots(job, plan_file),
        "env": dict(job.env),
        "optimizer_code": _optimizer_digest(),
    }
    graph_file = cache / f"graph-{_digest(question)}.json.gz"
    if graph_file.is_file() and await asyncio.to_thread(_sources_unchanged, graph_file):
        say(f"capture: {job.model}, from the cache")
        return graph_file
    say(f"capture: {job.model}, batch {job.batch}; profile on {question['processor']}")
    staged = graph_file.with_name("staged-" + graph_file.name)
    autocast = ["--autocast", job.autocast] if job.autocast else []
    # fmt: off
    await run_relayed(
        [sys.executable, "-m", "optimizer.profile", job.model, "--batch", str(job.batch),
         "--accumulate", str(job.accumulate), *autocast,
         "--optimizer", json.dumps(question["optimizer"]), "--seed", str(job.seed),
         "--device-type", device_type, "--threads", str(job.threads),
         "--cache", str(cache), "--out", str(staged)],
        say, job=job, plan_file=plan_file,
    )
    # fmt: on
    staged.replace(graph_file)
    return graph_file


def import_roots(job: PlacedJob | ReplayJob, plan_file: Path) -> list[str]:
    """Where the job's modules are looked for: its working directory, then beside the plan."""
    return [job.workdir or str(Path.cwd()), str(plan_file.resolve().parent)]


def processor_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _sources_unchanged(graph_file: Path) -> bool:
    """Whether the user's files that the captured graph was made from still say the same."""
    from optimizer.graph import read_json

    sources = read_json(graph_file)["notes"].get("sources", {})
    return bool(sources) and all(
        Path(file).is_file() and hashlib.sha256(Path(file).read_bytes()).hexdigest() == digest
        for file, digest in sources.items()
    )


def _replay_graphs(job: ReplayJob, plan_file: Path, cache: Path) -> tuple[Path, Path]:
    """The user's graph, and the same with its operators slowed by the time scale."""
    from optimizer.graph import GraphError, load_graph, save_graph

    roots = [Path.cwd(), plan_file.resolve().parent]
    path = next(root / job.graph for root in roots if (root / job.graph).is_file())
    try:
        graph = load_graph(path)
    except (GraphError, ValueError) as error:
        raise PlanError(str(plan_file), [("job.graph", str(error))]) from error
    slowed = graph.with_seconds(
        {t: graph.seconds[:, k] * job.time_scale for k, t in enumerate(graph.device_types)}
    )
    digest = _digest([slowed.structure_hash, slowed.profile_digest])
    file = cache / f"replay-{digest}.json.gz"
    if not file.is_file():
        save_graph(slowed, file)
    return path.resolve(), file


async def _solve(
    plan: Plan,
    graph_file: Path,
    cluster: Cluster,
    sharing: Literal["auto", Sharing],
    limit_seconds: float,
    cache: Path,
    say: Say,
) -> Path:
    """The placement's file. Under `auto` the best, and beside it a folder with one per sharing."""
    graph_digest = hashlib.sha256(graph_file.read_bytes()).hexdigest()
    question = [
        graph_digest, cluster.digest, sharing, plan.backend, plan.network.floor,
        plan.solve.model_dump(), limit_seconds, _optimizer_digest(),
    ]  # fmt: skip
    file = cache / f"placement-{_digest(question)}.json"
    if file.is_file():
        say(f"solve: {sharing}, from the cache")
        return file
    cluster_file = cache / f"cluster-{cluster.digest[:16]}.json"
    cluster_file.write_text(cluster.model_dump_json())
    rails = f" over {cluster.rails[0]} alone" if len(cluster.rails) == 1 else ""
    say(f"solve: {plan.solve.engine} under {sharing}{rails}, at most {limit_seconds:g} s")
    staged = file.with_name("staged-" + file.name)
    each = ["--out-each", str(_each_folder(file))] if sharing == "auto" else []
    # fmt: off
    await run_relayed(
        [sys.executable, "-m", "optimizer.cli", "solve", str(graph_file),
         "--cluster", str(cluster_file), "--engine", plan.solve.engine, "--sharing", sharing,
         "--backend", plan.backend, "--floor", str(plan.network.floor),
         "--gap", str(plan.solve.gap),
         "--time-limit", str(limit_seconds), "--seed", str(plan.solve.seed),
         "--out", str(staged), *each],
        say,
    )
    # fmt: on
    staged.replace(file)
    return file


def _each_folder(file: Path) -> Path:
    return file.with_suffix(".each")


def _optimizer_digest() -> str:
    """Changes when the optimizer's own code does: nothing that older code found is used again."""
    import optimizer

    digest = hashlib.sha256()
    for file in sorted(Path(optimizer.__path__[0]).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _digest(question: object) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]


async def run_relayed(
    argv: list[str], say: Say, *, job: PlacedJob | None = None, plan_file: Path | None = None
) -> None:
    """Relays what the process says; it is killed when this task is cancelled."""
    environment = dict(os.environ)
    if job is not None and plan_file is not None:
        paths = [*import_roots(job, plan_file), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
        environment |= job.env  # what ranks get: the model may look at it
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=job.workdir if job is not None else None,
    )
    lines: list[str] = []
    assert process.stderr is not None
    try:
        async for line in process.stderr:
            lines.append(line.decode(errors="replace").rstrip())
            say("  " + lines[-1])
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code == 4:
        raise InfeasiblePlacement("\n".join(lines[-3:]) or "no placement fits the cluster")
    if code == 3 and plan_file is not None:
        raise PlanError(str(plan_file), [("job.model", "\n".join(lines[-3:]))])
    if code != 0:
        raise PlacewireError(
            f"{argv[2]} ended with {code}",
            where=" ".join(argv[2:4]),
            remedy="\n  ".join(lines[-12:]),
        )
