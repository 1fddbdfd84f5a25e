"""Tests which server measures a device type, which results are kept, and what is refused."""

from __future__ import annotations

import asyncio
import errno
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.decide.measured import profiles
from placewire.controller.decide.measured.profiles import STALENESS_PROGRAM, profiled_graph
from placewire.controller.errors import JobFailed, OutOfMemory, PlacewireError, PlanError
from placewire.controller.launch.launcher import NoLauncher, RankProcess, RunningProgram
from placewire.controller.launch.programs import Ended
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.job.contract.specification import RankSpec
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.graph_file import graph_to_json, load_graph, save_graph
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from tests.controller.plans import plan, plan_document

SECONDS = {"cpu": 0.01, "cpu:slow": 0.03}


def answer(device_type: str, second: str, known: bytes) -> bytes:
    """The output of profiling a graph of two operators. second: the id of the second operator."""
    seconds = {device_type: SECONDS[device_type]}
    rows = [OperatorRow(id=i, type="any", seconds=seconds, signature="f4") for i in ("p", second)]
    notes = {"torch": "2.13.0", "processor": "one", "loss": second, "sources": {"m.py": "0"}}
    graph = build_graph(rows, [TensorRow("p", (second,), 8)], notes=notes)
    profile = {"key": {"device_type": device_type, "threads": 1}}
    name = f"profile-{device_type.encode().hex()[:16].ljust(16, '0')}.json"
    added = {} if name in json.loads(known) else {name: profile}
    return json.dumps({"graph": graph_to_json(graph), "profiles": added}).encode()


class Servers:
    """A launcher whose servers answer as a test wants. ran: (server, device type) of each run."""

    on_servers = True

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.known: dict[str, Any] = {}
        self.changed: dict[str, list[str]] = {}
        self.second: dict[str, str] = {}
        self.failing: dict[str, Ended] = {}
        # What a server prints in all, with %s in the place of its answer.
        self.printing: dict[str, bytes] = {}
        self.occupied: set[str] = set()
        self.measuring: list[str] = []
        self.most_at_once = 0
        # No measurement ends until this many run at once.
        self.waits_for_others = 0
        self.together = asyncio.Event()

    async def run(
        self,
        server: str,
        words: Sequence[str],
        *,
        given: bytes = b"",
        on_line: Callable[[str], None],
    ) -> Ended:
        if tuple(words) == STALENESS_PROGRAM:
            assert json.loads(given)["server"]
            said = json.dumps(self.changed.get(server, [])).encode()
            return Ended(0, self.printing.get(server, b"%s").replace(b"%s", said), ())
        device_type = words[list(words).index("--device-type") + 1]
        self.ran.append((server, device_type))
        self.known = json.loads(given)
        self.measuring.append(server)
        self.most_at_once = max(self.most_at_once, len(self.measuring))
        for _ in range(self.waits_for_others):
            if len(self.measuring) == self.waits_for_others:
                self.together.set()
            await asyncio.wait_for(self.together.wait(), 60)
        self.measuring.remove(server)
        if server in self.failing:
            return self.failing[server]
        on_line("capture: done")
        said = answer(device_type, self.second.get(server, "q"), given)
        return Ended(0, self.printing.get(server, b"%s").replace(b"%s", said), ())

    def busy(self, server: str) -> tuple[RunningProgram, ...]:
        ours = server in self.occupied or server in self.measuring
        return (RunningProgram(server, 4711, 12.0),) if ours else ()

    def require_ready(self) -> None: ...
    async def start(self, spec: RankSpec) -> RankProcess:
        raise NotImplementedError

    def left(self) -> tuple[RunningProgram, ...]:
        return ()

    def end_left(self, ranks: Sequence[RunningProgram]) -> None: ...


def of_types(*types: str) -> Plan:
    document = plan_document(len(types))
    for server, device_type in zip(document["cluster"]["servers"], types, strict=True):
        server["devices"][0]["type"] = device_type
    return plan(document)


class Asking:
    def __init__(self, of: Plan, cache: Path) -> None:
        self.plan, self.cache, self.said = of, cache, list[str]()
        self.servers = Servers()

    async def __call__(self) -> Path:
        assert isinstance(self.plan.job, PlacedJob)
        return await profiled_graph(
            self.plan,
            self.plan.job,
            Path("plan.yaml"),
            self.servers,  # type: ignore[arg-type]
            self.cache,
            self.said.append,
        )


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    return Asking(of_types("cpu", "cpu:slow", "cpu"), tmp_path)


async def test_each_type_is_measured_on_a_server_that_has_it(asking: Asking) -> None:
    graph = load_graph(await asking())
    assert sorted(asking.servers.ran) == [("s1", "cpu"), ("s2", "cpu:slow")]
    assert graph.device_types == ("cpu", "cpu:slow")
    assert graph.seconds.tolist() == [[0.01, 0.03], [0.01, 0.03]]
    assert graph.notes["profiles"]["cpu:slow"]["server"] == "s2"
    assert graph.notes["loss"] == "q"
    assert sorted(line for line in asking.said if "profile on" in line) == [
        f"{name}: profile on {server} ({name}): placewire.examples.models.mlp:training_step, "
        "batch 16"
        for server, name in (("s1", "cpu"), ("s2", "cpu:slow"))
    ]


async def test_types_are_measured_at_once_but_one_at_a_time_on_a_server(asking: Asking) -> None:
    asking.servers.waits_for_others = 2
    await asking()
    assert asking.servers.most_at_once == 2
    document = plan_document(1)
    document["cluster"]["servers"][0]["devices"] = [
        {"type": name, "memory": "1GiB"} for name in SECONDS
    ]
    both = Asking(plan(document), asking.cache / "both")
    both.cache.mkdir()
    await both()
    assert sorted(both.servers.ran) == [("s1", "cpu"), ("s1", "cpu:slow")]
    assert both.servers.most_at_once == 1


async def test_what_still_stands_is_not_measured_again(asking: Asking) -> None:
    first = await asking()
    asking.servers.ran.clear()
    assert await asking() == first and asking.servers.ran == []
    asking.servers.changed["s2"] = ["torch is 2.14, it was 2.13"]
    await asking()
    assert asking.servers.ran == [("s2", "cpu:slow")]
    assert "profile for cpu:slow: measured again, because torch is 2.14" in " ".join(asking.said)
    # The server is given the kept profiles of its device type, and of no other.
    assert [p["key"]["device_type"] for p in asking.servers.known.values()] == ["cpu:slow"]


async def test_servers_that_capture_different_steps_are_both_named(asking: Asking) -> None:
    asking.servers.second["s2"] = "other"
    with pytest.raises(PlanError) as refused:
        await asking()
    ((path, what),) = refused.value.mistakes
    assert path == "job.model"
    assert "s1 (cpu)" in what and "s2 (cpu:slow)" in what and "'q'" in what and "'other'" in what


@pytest.mark.parametrize(("status", "how"), [(1, "ended with 1"), (-9, "was killed by signal 9")])
async def test_a_profile_that_fails_is_named(asking: Asking, status: int, how: str) -> None:
    asking.servers.failing["s2"] = Ended(status, b"", ("out of", "memory"))
    with pytest.raises(PlacewireError) as failed:
        await asking()
    assert failed.value.where == "s2, device type cpu:slow"
    assert how in failed.value.what and failed.value.what.endswith("out of\n    memory")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."),
        (1, "torch.AcceleratorError: CUDA error: out of memory"),
        (1, "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 B"),
        (1, "RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        (1, "OSError: [Errno 12] Cannot allocate memory"),
        (1, "MemoryError"),
        # So does the optimizer report errors of the system, and those in a model's own lines.
        (3, "error: : Cannot allocate memory"),
        (3, "error: model.py:7: `torch.empty(10**13)`: RuntimeError: can't allocate memory"),
    ],
)
async def test_a_lack_of_memory_is_told_with_what_takes_less(
    asking: Asking, status: int, said: str
) -> None:
    asking.servers.failing["s2"] = Ended(status, b"", ("Traceback", said))
    with pytest.raises(OutOfMemory) as failed:
        await asking()
    assert failed.value.where == "s2, device type cpu:slow"
    assert said in failed.value.what and "is taken as" not in failed.value.what
    assert "`job.recompute: all`, a larger job.accumulate" in failed.value.remedy


async def test_a_profile_that_the_kernel_may_have_killed_is_assumed_to_lack_memory(
    asking: Asking,
) -> None:
    asking.servers.failing["s2"] = Ended(-9, b"", ())
    with pytest.raises(OutOfMemory, match="by signal 9, which is taken as a lack of memory"):
        await asking()
    asking.servers.failing["s2"] = Ended(-11, b"", ())
    with pytest.raises(PlacewireError) as failed:
        await asking()
    assert not isinstance(failed.value, OutOfMemory)


async def test_a_model_that_cannot_be_captured_is_the_plans_mistake(asking: Asking) -> None:
    asking.servers.failing["s1"] = Ended(3, b"", ("error: model.py:7 looks at data",))
    with pytest.raises(PlanError, match=r"(?s)job\.model: on s1, .* cpu: .*model.py:7 looks"):
        await asking()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("m: there are no layers to compute again; or leave out job.recompute", "job.recompute"),
        ("job.optimizer.groups[0]: no trained parameter is called 'b'", "job.optimizer.groups"),
    ],
)
async def test_the_field_that_a_refusal_names_is_the_plans_mistake(
    asking: Asking, said: str, field: str
) -> None:
    asking.servers.failing["s1"] = Ended(3, b"", (f"error: {said}",))
    with pytest.raises(PlanError, match=rf"(?s)\n  {re.escape(field)}: on s1, .* no "):
        await asking()


async def test_what_an_interpreter_prints_before_its_answer_is_passed_over(asking: Asking) -> None:
    asking.servers.printing["s2"] = b"welcome from sitecustomize\n%s\n"
    first = await asking()
    assert await asking() == first


@pytest.mark.parametrize(
    "printed",
    [
        b"",
        b"%s\nbye from atexit",
        b"[" * 100_000,
        b"[1, 2]",
        b'{"profiles": {}}',
        b'{"profiles": {"../x": 1}, "graph": {}}',
        b'{"profiles": {}, "graph": {"version": 1, "operators": [], "tensors": []}}',
        b'{"profiles": {}, "graph": 7}',
        b'{"profiles": {"profile-0123456789abcdef.json": [1]}, "graph": 7}',
        # So deep that what is read in one thread cannot be written in another.
        b'{"profiles": {"profile-0123456789abcdef.json": {"key": %s}}, "graph": 7}'
        % (b"[" * 900 + b"]" * 900),
    ],
)
async def test_an_answer_that_is_none_is_refused_with_its_server(
    asking: Asking, printed: bytes
) -> None:
    asking.servers.printing["s2"] = printed
    with pytest.raises(PlacewireError, match="answer of the profile is not understood") as refused:
        await asking()
    assert refused.value.where == "s2, device type cpu:slow"
    asking.servers.printing.clear()
    await asking()
    asking.servers.printing["s2"] = printed
    with pytest.raises(PlacewireError, match="answer of the profile is not understood"):
        await asking()


@pytest.mark.parametrize("number", [b"NaN", b"1e999"])
async def test_an_answer_with_a_number_that_no_file_can_have_is_refused(
    asking: Asking, number: bytes
) -> None:
    said, profile = answer("cpu:slow", "q", b"{}"), b'"profile-0123456789abcdef.json"'
    for changed in (
        said.replace(b'"profiles": {', b'"profiles": {%s: %s, ' % (profile, number)),
        said.replace(b'"2.13.0"', number),
    ):
        assert changed != said
        asking.servers.printing["s2"] = changed
        with pytest.raises(PlacewireError, match="answer of the profile is not underst") as refused:
            await asking()
        assert refused.value.where == "s2, device type cpu:slow"


async def test_a_full_disk_of_the_cache_is_said_after_a_profile(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, document: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(profiles, "write_json", full)
    with pytest.raises(PlacewireError, match="cache cannot be written: No space left") as refused:
        await asking()
    assert "free space on its disk" in refused.value.remedy


async def test_nothing_is_measured_beside_something_of_ours(asking: Asking) -> None:
    asking.servers.occupied = {"s1"}
    await asking()
    assert ("s3", "cpu") in asking.servers.ran, "another server of the type"
    asking.servers.occupied = {"s2"}
    asking.servers.changed["s2"] = ["model.py has changed"]
    with pytest.raises(JobFailed, match=r"s2: .*cpu:slow cannot be measured in isolation.*4711"):
        await asking()


async def test_without_a_way_to_the_servers_one_cpu_type_is_measured_here(tmp_path: Path) -> None:
    of = of_types("cpu", "cpu:slow")
    assert isinstance(of.job, PlacedJob)
    with pytest.raises(PlanError, match=r"device types cpu, cpu:slow: .*launch: {kind: ssh}"):
        await profiled_graph(of, of.job, Path("plan.yaml"), NoLauncher(), tmp_path, print)
    of = of_types("rtx4080s")
    assert isinstance(of.job, PlacedJob)
    refused = r"servers\[0\]\.devices\[0\]\.type: device type .rtx4080s. is measured on a server"
    with pytest.raises(PlanError, match=refused):
        await profiled_graph(of, of.job, Path("plan.yaml"), NoLauncher(), tmp_path, print)


@pytest.mark.thorough
async def test_the_real_program_measures_and_keeps_by_structure(tmp_path: Path) -> None:
    asking = Asking(of_types("cpu"), tmp_path)
    of, said = asking.plan, list[str]()
    assert isinstance(of.job, PlacedJob)

    async def graph() -> Path:
        job = of.job
        assert isinstance(job, PlacedJob)
        return await profiled_graph(of, job, Path("plan.yaml"), NoLauncher(), tmp_path, said.append)

    file = await graph()
    measured = load_graph(file)
    assert measured.device_types == ("cpu",) and measured.seconds.sum() > 0
    assert len(list(tmp_path.glob("profile-*.json"))) == 1
    said.clear()
    assert await graph() == file and said == [
        "profile for cpu: placewire.examples.models.mlp:training_step, from the cache"
    ]
    # An edit that does not change the step has it captured again, but not measured.
    file.unlink()
    assert (load_graph(await graph()).seconds == measured.seconds).all()
    assert [line for line in said if "profile: from" in line]


NOTES = [
    '{"loss": "none"}',
    '{"inputs": 7}',
    '{"inputs": [["p"]]}',
    '{"whole_batch": 7}',
    '{"program_bytes": "many"}',
    '{"profiles": {"cpu": 7}}',
    '{"deep": %s}' % ("[" * 900 + "]" * 900),
]


@pytest.mark.parametrize("notes", NOTES)
async def test_an_answer_whose_notes_are_none_of_a_capture_is_refused(
    asking: Asking, notes: str
) -> None:
    """A preview shows them, and ended with a traceback."""
    said = json.loads(answer("cpu:slow", "q", b"{}"))
    said["graph"]["notes"] |= json.loads(notes)
    asking.servers.printing["s2"] = json.dumps(said).encode()
    with pytest.raises(PlacewireError, match="answer of the profile is not understood") as refused:
        await asking()
    assert refused.value.where == "s2, device type cpu:slow"


async def test_what_servers_answered_before_does_not_fill_memory(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asking()
    made = sorted(asking.cache.glob("profile-*.json"))
    of_slow = next(file for file in made if "cpu:slow" in file.read_text())
    kept = {**json.loads(of_slow.read_bytes()), "more": "x" * 1000}
    for number in range(8):
        of_slow.with_name(f"profile-{number:016x}.json").write_text(json.dumps(kept))
    of_slow.with_name("profile-ffffffffffffffff.json").write_text("[" * 100_000)
    asking.servers.changed["s2"] = ["model.py has changed"]
    await asking()
    assert len(asking.servers.known) == 9
    monkeypatch.setattr(profiles, "_MOST_KNOWN_BYTES", 5000)
    await asking()
    assert 3 <= len(asking.servers.known) <= 5


# --- job.profile ----------------------------------------------------------------------------------


def with_profile(folder: Path, *types: str, **notes: Any) -> Asking:
    """Asks for the graph of a job of two servers that gives a profile of itself; notes: what the
    profile says instead."""
    document = plan_document(2)
    of_the_step = {"accumulate": 1, "shards": 1, "recompute": "none", "autocast": None}
    measured = {"optimizer": OptimizerChoice().signature, "threads": 1}
    says = {"model": document["job"]["model"], "batch": 16, **of_the_step, **measured, **notes}
    seconds = dict.fromkeys(types or ("cpu",), 0.5)
    rows = [OperatorRow(id=i, type="any", seconds=seconds, signature="f4") for i in "pq"]
    file = folder / "given.json.gz"
    save_graph(build_graph(rows, [TensorRow("p", ("q",), 8)], notes=says), file)
    document["job"]["profile"] = str(file)
    return Asking(plan(document), folder)


async def test_a_profile_that_the_plan_gives_is_taken(tmp_path: Path) -> None:
    asking = with_profile(tmp_path)
    assert await asking() == tmp_path / "given.json.gz"
    assert asking.servers.ran == []
    assert asking.said[-1].endswith(f"from {tmp_path / 'given.json.gz'}")


@pytest.mark.parametrize(
    ("notes", "what"),
    [
        ({"batch": 32}, "its batch is 32, and job.batch is 16"),
        ({"model": "m:n"}, "its model is 'm:n', and job.model is"),
        ({"accumulate": 4}, "its accumulate is 4, and job.accumulate is 1"),
        ({"recompute": "all"}, "its recompute is 'all', and job.recompute is 'none'"),
        ({"bucket": "12"}, "several shapes (buckets)"),
        ({"optimizer": OptimizerChoice("sgd").signature}, "its optimizer is 'sgd(lr=0.001,"),
        ({"optimizer": OptimizerChoice(lr=0.1).signature}, "job.optimizer is 'adamw(lr=0.001,"),
        ({"threads": 4}, "its threads is 4, and job.threads is 1"),
        ({"decompose": True}, "made with --decompose, which no job trains"),
        ({"inference": True, "optimizer": None}, "made with --inference"),
    ],
)
async def test_a_profile_of_another_step_is_refused(
    tmp_path: Path, notes: dict[str, Any], what: str
) -> None:
    with pytest.raises(PlanError) as refused:
        await with_profile(tmp_path, **notes)()
    ((path, said),) = refused.value.mistakes
    assert path == "job.profile" and what in said
    assert "`controller evaluate` on a server of the plan that has the device type" in said


async def test_a_profile_with_the_job_s_own_optimizer_is_taken(tmp_path: Path) -> None:
    """The text of the optimizer is the same, whether a plan gives it or `--optimizer`."""
    given: dict[str, Any] = {
        "name": "adam", "lr": 0.01, "options": {"betas": [0.8, 0.9]}, "clip_norm": 1.0,
        "scaler": {}, "schedule": {"name": "cosine", "total_steps": 3},
        "groups": [{"match": ["bias"], "options": {"weight_decay": 0.0}}],
    }  # fmt: skip
    chosen = OptimizerChoice.of(given)
    asking = with_profile(tmp_path, optimizer=chosen.signature)
    document = plan_document(2)
    own = {**given, "schedule": {"name": "cosine"}}
    own["groups"] = [{"match": ["bias"], "weight_decay": 0}]
    document["job"] |= {"optimizer": own, "profile": str(tmp_path / "given.json.gz")}
    assert await Asking(plan(document), tmp_path)() == tmp_path / "given.json.gz"
    with pytest.raises(PlanError, match="its optimizer is"):
        await asking()


async def test_a_profile_of_another_device_or_of_changed_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="it has no times of cpu, only of v100"):
        await with_profile(tmp_path, "v100")()
    asking = with_profile(tmp_path)
    asking.servers.changed["s1"] = ["m.py has changed"]
    with pytest.raises(PlanError, match=r"no longer holds on s1 \(cpu\): m.py has changed"):
        await asking()
    (tmp_path / "given.json.gz").write_text("nothing")
    with pytest.raises(PlanError, match=r"job\.profile"):
        await asking()
