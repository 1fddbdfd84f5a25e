"""Ranks on loopback, forked from a process that captured their step once.

Each rank is a process of its own that runs `run_rank` (job/placed/runtime.py) once, over gloo, like
a rank that was launched. It takes the capture from its parent, but makes its part of the model
itself, and in the end hands over every tensor that it holds. A run ends within its limit, whatever
the ranks do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from placewire.job.contract.specification import (
    Failed,
    OptimizerSpec,
    RankEvent,
    RankSpec,
    StepDone,
)
from placewire.job.placed import buckets, runtime
from placewire.job.placed.lower import RankProgram, lower
from placewire.optimizer.capture import partial_values as part
from placewire.optimizer.capture.capture_options import CaptureOptions
from placewire.optimizer.capture.deferred import NotRepeatableError, recorded
from placewire.optimizer.capture.protocol import load_training_step
from placewire.optimizer.capture.step import captured_with_buckets
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.placement import Placement, save_placement
from tests.job.ranks import specs_on_loopback

# The limit of a capture on a machine that does much else.
CAPTURE_SECONDS = 400.0
# After a rank failed, the others get so long instead of their own limits.
GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Trained:
    """The outcome of a job. losses: of each step. tensors: parameters and buffers by operator id,
    and optimizer state by the update's id and torch's name, `update_x.exp_avg`. failures: what
    failed ranks said."""

    losses: tuple[float, ...]
    tensors: Mapping[str, torch.Tensor]
    failures: tuple[str, ...] = ()

    def differences(self, other: Trained) -> tuple[str, ...]:
        """The failures of either, `loss` if losses differ, and the names of tensors that are not
        torch.equal."""
        found = [*self.failures, *other.failures]
        if self.losses != other.losses or not self.losses:
            found.append("loss")
        for name in sorted(self.tensors.keys() | other.tensors.keys()):
            one, two = self.tensors.get(name), other.tensors.get(name)
            if one is None or two is None or not torch.equal(one, two):
                found.append(name)
        return tuple(found)


class RankPool:
    """One captured step; run() trains it under any placement. Close it, or use `with`.

    graph: its operators. names: the names of parameters and buffers in PyTorch, by operator id.
    mutation: a function of a module, called in the capturing process before it captures. Raises
    RuntimeError where the step cannot be captured.
    """

    def __init__(
        self,
        model: str,
        batch: int,
        optimizer: OptimizerSpec,
        seed: int = 0,
        mutation: Callable[[], None] | None = None,
        *,
        accumulate: int = 1,
        shards: int = 1,
    ) -> None:
        self._fields = {
            "kind": "placed", "model": model, "batch": batch, "optimizer": optimizer, "seed": seed,
            "accumulate": accumulate, "shards": shards,
        }  # fmt: skip
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, model, batch, optimizer, seed, accumulate, shards, mutation)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        answer = self._answer(CAPTURE_SECONDS)
        if isinstance(answer, str):
            self.close()
            raise RuntimeError(answer)
        self.graph: OperatorGraph
        self.names: Mapping[str, Sequence[str]]
        self.graph, self.names = answer

    def run(
        self,
        placement: Placement,
        steps: int,
        rails: Sequence[str] = ("a",),
        mutation: Callable[[], None] | None = None,
        limit_seconds: float = 600.0,
        **options: Any,
    ) -> Trained:
        """Trains with new ranks from the initial parameters. mutation: called in every rank before
        it begins. options: fields of RankSpec."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "placement.json"
            save_placement(placement, file)
            limits = dict.fromkeys(
                ("timeout_seconds", "wait_seconds", "loss_seconds"), limit_seconds
            )
            fields = {"steps": steps, "threads": 1, **limits, **options}
            specs = specs_on_loopback(placement, file, rails, **self._fields, **fields)
            self._connection.send((specs, folder, limit_seconds, mutation))
            failures = self._answer(limit_seconds + 30)
            assert isinstance(failures, tuple)
            return _collected(Path(folder), len(specs), failures)

    def _answer(self, seconds: float) -> Any:
        try:
            if self._connection.poll(seconds):
                return self._connection.recv()
        except EOFError:
            self.close()
            raise RuntimeError("the process that captured the step has ended") from None
        self.close()
        raise RuntimeError(f"the capturing process gave no answer within {seconds:g} s")

    def close(self) -> None:
        """Ends the capturing process and all ranks that still run."""
        if self._process.pid is not None and self._process.is_alive():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _collected(folder: Path, ranks: int, failures: tuple[str, ...]) -> Trained:
    losses: list[float] = []
    tensors: dict[str, torch.Tensor] = {}
    for rank in range(ranks):
        if (file := folder / f"rank{rank}.pt").exists():
            found = torch.load(file)
            losses += found["losses"]
            if twice := tensors.keys() & found["tensors"].keys():
                failures = (*failures, f"{min(twice)} is held by two ranks")
            tensors |= found["tensors"]
    return Trained(tuple(losses), tensors, failures)


def _serve(
    connection: Connection,
    model: str,
    batch: int,
    optimizer: OptimizerSpec,
    seed: int,
    accumulate: int,
    shards: int,
    mutation: Callable[[], None] | None,
) -> None:
    """The capturing process: answers with the operators, then runs ranks whenever it is asked."""
    os.setpgrp()
    # Threads of torch would not survive the fork; ranks set their own number.
    torch.set_num_threads(1)
    if mutation is not None:
        mutation()
    choice = OptimizerChoice.of(optimizer.model_dump())
    try:
        step, recording = recorded(lambda: load_training_step(model, batch, seed))
        captured = captured_with_buckets(
            step, CaptureOptions(model, batch, choice, seed, accumulate=accumulate, shards=shards)
        )
    except (ValueError, NotRepeatableError) as error:
        connection.send(str(error))
        return
    # Ranks capture again, as launched ones do, and are given this; the values they make themselves.
    patch.object(part, "recorded", lambda build: (step, recording)).start()
    patch.object(part, "captured_with_buckets", lambda *arguments: captured).start()
    connection.send((captured.operators, captured.code.names))
    while True:
        try:
            specs, folder, seconds, change = connection.recv()
        except EOFError:
            return
        connection.send(_forked(specs, Path(folder), seconds, change))


def _forked(
    specs: Sequence[RankSpec],
    folder: Path,
    seconds: float,
    mutation: Callable[[], None] | None,
) -> tuple[str, ...]:
    """Runs one rank per specification; returns what went wrong."""
    running = {_fork(spec, folder, mutation): spec.rank for spec in specs}
    failures: list[str] = []
    deadline = time.monotonic() + seconds
    while running and time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            time.sleep(0.005)
            continue
        rank = running.pop(pid)
        if status:
            lines = (folder / f"rank{rank}.err").read_text().strip().splitlines()
            failures.append(f"rank {rank}: {lines[-1] if lines else 'said nothing'}")
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    for pid, rank in running.items():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        failures.append(f"rank {rank}: ended by the limit")
    return tuple(failures)


def _fork(spec: RankSpec, folder: Path, mutation: Callable[[], None] | None) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        descriptor = os.open(folder / f"rank{spec.rank}.err", os.O_CREAT | os.O_WRONLY)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        if mutation is not None:
            mutation()
        _run(spec, folder / f"rank{spec.rank}.pt")
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(spec: RankSpec, results: Path) -> None:
    """Runs a rank and writes its losses and tensors into the file `results`."""
    programs: list[RankProgram] = []

    def keep(*arguments: Any, **options: Any) -> RankProgram:
        programs.append(lower(*arguments, **options))
        return programs[-1]

    losses: list[float] = []

    def note(event: RankEvent) -> None:
        if isinstance(event, StepDone) and event.loss is not None:
            losses.append(event.loss)
        elif isinstance(event, Failed):
            print(event.what, file=sys.stderr, flush=True)

    def lost(failed: Failed) -> None:
        note(failed)
        os._exit(1)

    with patch.object(buckets, "lower", keep):
        runtime.run_rank(spec, note, lost)
    torch.save({"losses": losses, "tensors": _held(programs[0], spec.steps)}, results)


def _held(program: RankProgram, steps: int) -> dict[str, torch.Tensor]:
    """Parameters and buffers by id, and the state of each update after so many steps."""
    held = dict(program.held)
    for parameter, update in program.updates.items():
        name = parameter.replace("parameter_", "update_", 1)
        state = update.state(program.held[parameter], steps)
        held |= {f"{name}.{key}": value for key, value in state.items()}
    return {name: value.detach().clone() for name, value in held.items()}
