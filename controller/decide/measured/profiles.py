"""Measures the operator graph of a placed job on its servers: a column of times per device type.

For each device type, one server that has it captures and measures the step, as ranks run there. All
types are measured at once, but only one at a time on a server, and on no server where another
program of Placewire runs, because a disturbed measurement would distort every prediction. Graphs
are kept per device type and used again while the server confirms that they are still valid.
Measured profiles are kept by the step's structure, so that an edit that does not change the step
costs no measurement.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from placewire.controller.abandonable import abandonable
from placewire.controller.decide.cached_file import is_whole, written
from placewire.controller.decide.measured.answers import Asked, answer_of, not_understood, refused
from placewire.controller.decide.measured.digests import digest, optimizer_digest
from placewire.controller.decide.measured.given import given_profile, not_of_job
from placewire.controller.decide.measured.optimizer_process import Say
from placewire.controller.errors import Occupied, PlacewireError
from placewire.controller.launch.launcher import PROFILE_PROGRAM, Launcher, RunningProgram
from placewire.controller.plan.job import Job, PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.graph.graph_file import graph_from_json, load_graph, save_graph
from placewire.optimizer.graph.json_file import read_json, write_json
from placewire.optimizer.graph.operator_graph import GraphError
from placewire.optimizer.names import is_cpu
from placewire.optimizer.profile.exchange import require_profiles
from placewire.optimizer.profile.joining import joined

STALENESS_PROGRAM = ("-m", "placewire.optimizer.profile.staleness")
# Three samples suffice to compare variants of a step; the seconds shorten the warming up.
_QUICKLY = ("--samples", "3", "--seconds", "5")
# How many of the latest profiles of other steps the measuring program is given, and of what length
# all together: 32 of 50,000 operators. They are what servers answered before.
_MOST_KNOWN = 32
_MOST_KNOWN_BYTES = 128 * 2**20
_NO_LAUNCH = (
    "is measured on a server that has it, and the plan does not say how to start programs there "
    "(launch: {kind: ssh})"
)


async def profiled_graph(
    plan: Plan,
    job: PlacedJob,
    plan_file: Path,
    launcher: Launcher,
    cache: Path,
    say: Say,
    *,
    quickly: bool = False,
    bucket: str | None = None,
) -> Path:
    """The graph's file, of the first bucket, or of that bucket: then its notes say which part of
    the job's steps each bucket has. quickly: with few samples. A better profile serves where no
    quick one is known, so that a comparison that was made once is found again. Raises PlanError
    where the model cannot be captured or a device type cannot be measured, and PlacewireError,
    naming server and device type, where measuring fails."""
    asked = [
        replace(one, quickly=quickly, bucket=bucket)
        for one in _asked(plan, job, plan_file, launcher)
    ]
    if job.profile is not None:
        return await _given(asked, launcher, say)
    turns = {server.name: asyncio.Lock() for server in plan.cluster.servers}
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_of_type(one, launcher, cache, _labelled(say, one, asked), turns))
                for one in asked
            ]
    except* PlacewireError as failed:
        raise failed.exceptions[0] from None
    files = [task.result() for task in tasks]
    if len(files) == 1:
        return files[0]
    return await asyncio.to_thread(_joined, asked, files, cache)


async def _given(asked: list[Asked], launcher: Launcher, say: Say) -> Path:
    """The file of job.profile, which every device type's first server confirms. Raises PlanError
    where it is of another step, or of other sources."""
    one = asked[0]
    types = [each.device_type for each in asked]
    file, graph = await asyncio.to_thread(given_profile, one.job, types, one.bucket, one.plan_file)
    for each in asked:
        server = each.servers[0]
        notes = {**graph.notes, "server": server}
        if changed := await _changed(each, launcher, server, notes):
            where = f"{server} ({each.device_type})" if launcher.on_servers else "this machine"
            raise not_of_job(one.plan_file, f"{file} no longer holds on {where}: {changed[0]}")
    say(f"profile for {', '.join(types)}: {one.job.model}, from {file}")
    return file


def _labelled(say: Say, one: Asked, asked: list[Asked]) -> Say:
    """Puts the device type before each line where several types are measured at once."""
    return say if len(asked) == 1 else lambda line: say(f"{one.device_type}: {line}")


def import_roots(job: Job, plan_file: Path) -> list[str]:
    """Where the job's modules are imported from: its working directory, then the plan's folder."""
    return [job.workdir or str(Path.cwd()), str(plan_file.resolve().parent)]


def _asked(plan: Plan, job: PlacedJob, plan_file: Path, launcher: Launcher) -> list[Asked]:
    """Raises PlanError where a device type could only be measured on a server, and the launcher
    starts programs on this machine."""
    servers_of: dict[str, list[str]] = {}
    for k, server in enumerate(plan.cluster.servers):
        for d, device in enumerate(server.devices):
            servers_of.setdefault(device.type, []).append(server.name)
            if not is_cpu(device.type) and not launcher.on_servers:
                raise refused(
                    plan_file,
                    f"cluster.servers[{k}].devices[{d}].type",
                    f"device type {device.type!r} {_NO_LAUNCH}; add that, or give a graph file "
                    "with the times of this type (job.kind: replay)",
                )
    if len(servers_of) > 1 and not launcher.on_servers:
        raise refused(
            plan_file,
            "cluster.servers",
            f"device types {', '.join(servers_of)}: each {_NO_LAUNCH}; add that, use one type, or "
            "give a graph file with the times of each (job.kind: replay)",
        )
    return [
        Asked(job, plan_file, name, tuple(dict.fromkeys(servers)))
        for name, servers in servers_of.items()
    ]


async def _of_type(
    asked: Asked, launcher: Launcher, cache: Path, say: Say, turns: Mapping[str, asyncio.Lock]
) -> Path:
    """turns: by server, the lock that lets one type be measured there at a time."""
    file, why = _file(asked, cache), ""
    for known in dict.fromkeys([file, _file(replace(asked, quickly=False), cache)]):
        if await asyncio.to_thread(is_whole, known, load_graph):
            notes = (await asyncio.to_thread(read_json, known))["notes"]
            async with turns[asked.servers[0]]:
                changed = await _changed(asked, launcher, asked.servers[0], notes)
            if not changed:
                bucket = "" if asked.bucket is None else f", bucket {asked.bucket}"
                say(f"profile for {asked.device_type}: {asked.job.model}{bucket}, from the cache")
                return known
            why = changed[0]
    if why:
        say(f"profile for {asked.device_type}: measured again, because {why}")
    running: dict[str, RunningProgram] = {}
    # Servers where no other type is being measured come first.
    for server in sorted(asked.servers, key=lambda server: turns[server].locked()):
        async with turns[server]:
            if busy := await abandonable(partial(launcher.busy, server)):
                running[server] = busy[0]
                continue
            await _measure(asked, launcher, server, cache, file, say)
            return file
    first, rank = next(iter(running.items()))
    raise Occupied(
        f"device type {asked.device_type} cannot be measured in isolation: on every server that "
        "has it a rank or a profile of Placewire runs already, on this one with pid "
        f"{rank.pid} for {rank.seconds:.0f} s",
        where=first,
        remedy="wait until it has ended; `controller destroy` ends ranks whose controller is gone",
    )


def _file(asked: Asked, cache: Path) -> Path:
    return cache / f"graph-{digest(_question(asked))}.json.gz"


def _question(asked: Asked) -> Mapping[str, Any]:
    """All that a profile depends on, except what only its server knows (`_changed`)."""
    job = asked.job
    return {
        "model": job.model,
        "batch": job.batch,
        "accumulate": job.accumulate,
        "shards": job.shards,
        "recompute": job.recompute,
        "autocast": job.autocast,
        "optimizer": job.optimizer_document,
        "seed": job.seed,
        "threads": job.threads,
        "device_type": asked.device_type,
        "roots": import_roots(job, asked.plan_file),
        "env": dict(job.env),
        "python": job.python,
        "quickly": asked.quickly,
        "bucket": _bucket_words(asked),
        "optimizer_code": optimizer_digest(),
    }


def _bucket_words(asked: Asked) -> list[str]:
    if asked.bucket is None:
        return []
    return ["--bucket", asked.bucket, "--steps", str(asked.job.steps)]


async def _changed(
    asked: Asked, launcher: Launcher, server: str, notes: Mapping[str, Any]
) -> list[str]:
    """The reasons why a graph of these notes is no longer valid on that server; empty where it
    is valid."""
    said: list[str] = []
    ended = await launcher.run(
        server, STALENESS_PROGRAM, given=json.dumps(notes).encode(), on_line=said.append
    )
    changed = answer_of(ended, asked, server)
    if not isinstance(changed, list) or not all(isinstance(one, str) for one in changed):
        raise not_understood(asked, server, "it is no list of what has changed")
    return changed


async def _measure(
    asked: Asked, launcher: Launcher, server: str, cache: Path, file: Path, say: Say
) -> None:
    job = asked.job
    where = f"{server} ({asked.device_type})" if launcher.on_servers else "this machine"
    bucket = "" if asked.bucket is None else f", bucket {asked.bucket}"
    say(f"profile on {where}: {job.model}, batch {job.batch}{bucket}")
    autocast = ["--autocast", job.autocast] if job.autocast else []
    words = [
        *PROFILE_PROGRAM, job.model, "--batch", str(job.batch),
        "--accumulate", str(job.accumulate), "--shards", str(job.shards),
        "--recompute", job.recompute, *autocast,
        "--optimizer", json.dumps(job.optimizer_document), "--seed", str(job.seed),
        "--device-type", asked.device_type, "--threads", str(job.threads), "--exchange",
        *_bucket_words(asked), *(_QUICKLY if asked.quickly else ()),
    ]  # fmt: skip
    known = await asyncio.to_thread(_known_profiles, cache, asked)
    ended = await launcher.run(
        server, words, given=json.dumps(known).encode(), on_line=lambda line: say("  " + line)
    )

    def keep() -> None:
        answer = answer_of(ended, asked, server)
        if not isinstance(answer, dict) or not {"profiles", "graph"} <= answer.keys():
            raise not_understood(asked, server, "it has no profiles and no graph")
        try:
            profiles = require_profiles(answer["profiles"])
            graph = graph_from_json(answer["graph"])
        except GraphError as error:
            raise not_understood(asked, server, str(error)) from error
        if asked.device_type not in graph.device_types:
            raise not_understood(asked, server, "its graph has no times of this device type")
        try:
            with written(file):
                for name, document in profiles.items():
                    write_json(cache / name, document)
                save_graph(replace(graph, notes={**graph.notes, "server": server}), file)
        except (ValueError, RecursionError) as error:  # As of a number that is not finite.
            raise not_understood(asked, server, str(error)) from error

    await asyncio.to_thread(keep)


def _known_profiles(cache: Path, asked: Asked) -> dict[str, Any]:
    """By file name, the latest profiles of this device type and thread count."""
    files = sorted(cache.glob("profile-*.json"), key=lambda f: f.stat().st_mtime, reverse=True)
    known: dict[str, Any] = {}
    room = _MOST_KNOWN_BYTES
    for file in files:
        try:
            if (size := file.stat().st_size) > room:
                continue
            document = json.loads(file.read_bytes())
            of = document["key"]["device_type"], document["key"]["threads"]
            require_profiles({file.name: document})
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # The file is broken: it is replaced when its step is measured again.
        if of == (asked.device_type, asked.job.threads):
            known[file.name] = document
            room -= size
        if len(known) == _MOST_KNOWN:
            break
    return known


def _joined(asked: list[Asked], files: list[Path], cache: Path) -> Path:
    graphs = {one.device_type: load_graph(file) for one, file in zip(asked, files, strict=True)}
    try:
        graph = joined(graphs)
    except GraphError as error:
        raise refused(asked[0].plan_file, "job.model", str(error)) from error
    file = cache / f"joined-{digest([graph.structure_hash, graph.profile_digest])}.json.gz"
    if not is_whole(file, load_graph):
        with written(file):
            save_graph(graph, file)
    return file
