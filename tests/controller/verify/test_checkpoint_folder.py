"""Is it told before anything is changed what ranks would make of a folder of checkpoints?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import placewire.controller.story.propose as module
from placewire.agent.contract.diagnosis import Finding
from placewire.controller.commands.doctor import exit_code, job_outlook, of_job
from placewire.controller.decide.decide import PlacementDecision
from placewire.controller.decide.variants import Variant
from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.launch.programs import Ended, OnLine
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.controller.show.story import Show
from placewire.controller.story.propose import propose
from placewire.controller.story.tools import ApplyRequest, Tools
from placewire.controller.verify.checkpoint_folder import (
    CheckpointOutlook,
    captured_identity,
    checkpoint_outlook,
    planned_identity,
)
from placewire.job.contract.checkpoint import (
    MANIFEST,
    Manifest,
    checkpoint_path,
    checkpoints_in,
)
from placewire.job.contract.checkpoint_look import CheckpointAnswer, CheckpointQuestion
from placewire.job.contract.same_job import differences_between
from placewire.optimizer.capture.step import capture
from placewire.optimizer.capture.updates import OptimizerChoice
from placewire.optimizer.graph.graph_file import load_graph, save_graph
from placewire.optimizer.graph.halves import forward_hash
from placewire.optimizer.graph.operator_graph import OperatorRow, build_graph
from tests.controller.plans import placement, plan, plan_document


class Here:
    """A launcher that runs what is for servers on this machine, as a lab does."""

    on_servers = True

    def __init__(self) -> None:
        self.asked: list[str] = []

    def require_ready(self) -> None:
        return

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        self.asked.append(server)
        return await NoLauncher().run(server, words, given=given, on_line=on_line)


class Silent:
    """Agents that have dialled in and must not be asked anything."""

    async def wait_for(self, *_: Any, **__: Any) -> None:
        return None


class Old(Here):
    """Its first server has no such program."""

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        if server == "s1":
            return Ended(1, b"", ("No module named placewire",))
        return await super().run(server, words, given=given, on_line=on_line)


class Unmounted(Here):
    """What servers share is not there on its last one."""

    async def run(
        self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
    ) -> Ended:
        if server == "s3":
            return await super().run(server, words, given=given, on_line=on_line)
        answer = CheckpointAnswer(begins="the job resumes").model_dump_json().encode()
        return Ended(0, answer, ())


ALL = ("s1", "s2", "s3")


def saving_in(folder: Path) -> Plan:
    document = plan_document()
    document["job"]["checkpoint"] = {"folder": str(folder)}
    return plan(document)


def job_of(made: Plan) -> PlacedJob:
    assert isinstance(made.job, PlacedJob)
    return made.job


async def looked(of: Plan, launcher: Any, servers: Sequence[str] = ALL) -> CheckpointOutlook:
    """As before anything is captured."""
    job = job_of(of)
    return await checkpoint_outlook(job, planned_identity(job), launcher, servers)


@pytest.mark.parametrize(
    ("optimizer", "keeps"),
    [
        ({"name": "sgd", "momentum": 0.9}, ("momentum",)),
        ({"name": "sgd"}, ()),
        ({"name": "torch.optim:RMSprop", "options": {"centered": True}}, ("centered",)),
        ({"name": "mine:Sgd", "momentum": 0.9}, ()),
        (
            {
                "name": "torch.optim:RMSprop",
                "options": {"centered": True},
                "groups": [{"match": ["bias"], "options": {"centered": False}}],
            },
            (),
        ),
    ],
)
async def test_servers_are_told_what_the_optimizer_keeps_of_every_parameter(
    tmp_path: Path, optimizer: dict[str, Any], keeps: tuple[str, ...]
) -> None:
    noted: list[bytes] = []

    class Noting(Here):
        async def run(
            self, server: str, words: Sequence[str], *, given: bytes = b"", on_line: OnLine
        ) -> Ended:
            noted.append(given)
            return Ended(0, CheckpointAnswer(begins="it begins").model_dump_json().encode(), ())

    document = plan_document()
    document["job"] |= {"checkpoint": {"folder": str(tmp_path)}, "optimizer": optimizer}
    await looked(plan(document), Noting(), ("s1",))
    (question,) = map(CheckpointQuestion.model_validate_json, noted)
    assert question.keeps == keeps


async def test_every_server_is_asked_and_heard(tmp_path: Path) -> None:
    launcher: Any = Here()
    new = await looked(saving_in(tmp_path / "kept"), launcher)
    assert sorted(launcher.asked) == [*ALL] and new.problems == {}
    begins = f"the job begins at step 0: {tmp_path / 'kept'} is not there yet, and is made"
    assert new.beginnings() == {begins: "s1, s2, s3"}
    (tmp_path / "kept").write_text("no folder")
    found = (await looked(saving_in(tmp_path / "kept"), launcher, ("s2", "s3"))).problems
    assert sorted(launcher.asked) == ["s1", "s2", "s2", "s3", "s3"]
    assert [*found] == ["s2", "s3"]
    for server, one in found.items():
        assert isinstance(one, UsageError) and "is no folder" in one.what
        assert one.where == server and one.remedy


async def test_a_job_that_saves_nothing_is_not_looked_at() -> None:
    launcher: Any = Here()
    assert await looked(plan(plan_document()), launcher) == CheckpointOutlook({}, {})
    assert launcher.asked == []


async def test_a_folder_on_this_machine_is_not_taken_for_the_servers(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    outlook = await looked(saving_in(tmp_path / "kept"), NoLauncher())
    assert outlook == CheckpointOutlook({}, {})


async def test_a_server_that_cannot_look_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    found = (await looked(saving_in(tmp_path / "kept"), Old())).problems
    first, second, _ = found.values()
    assert isinstance(first, LaunchFailed) and first.where == "s1"
    assert "No module named placewire" in first.what
    assert isinstance(second, UsageError) and second.where == "s2"


def proposing(
    of: Plan, devices: Sequence[str], launcher: Here, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ApplyRequest, Tools]:
    """devices: those that the placement uses."""
    made = placement(of, ())
    made = made.model_copy(update={"order": {d: made.order[d] for d in devices}})
    graph = folder / "graph.json"
    save_graph(build_graph([OperatorRow("p", "x", {"cpu": 1.0})], [], notes={"loss": "p"}), graph)
    job = job_of(of).model_copy(update={"shards": 1})
    decision = PlacementDecision(Variant(job, graph, graph), folder / "p.json", made, (made,))

    async def decided(*_: Any) -> PlacementDecision:
        return decision

    monkeypatch.setattr(module, "decide", decided)
    monkeypatch.setattr(Show, "decision", lambda self, one: None)

    async def yes() -> bool:
        return True

    tools = Tools(cast(Any, Silent()), cast(Any, None), cast(Any, launcher), folder, folder, Show())
    return ApplyRequest(of, Path("plan.yaml"), False, yes), tools


async def test_a_proposal_is_refused_before_any_agent_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a server before could not be looked at."""
    (tmp_path / "kept").write_text("no folder")
    of, devices = saving_in(tmp_path / "kept"), ("s1/0", "s2/0")
    for launcher, where in ((Here(), "s1"), (Old(), "s2")):
        asked = proposing(of, devices, launcher, tmp_path, monkeypatch)
        with pytest.raises(UsageError, match="is no folder") as raised:
            await propose(*asked)
        assert raised.value.where == where


def save(folder: Path, step: int, **changes: Any) -> None:
    made = Manifest(
        step=step, structure_hash="h", computation_hash="c", batch=16, accumulate=1, shards=1,
        model="placewire.examples.models.mlp:training_step", seed=0, optimizer="adamw",
        optimizer_settings="", devices=("s1/0",), torch="2", tensors={}, files={},
    ).model_copy(update=changes)  # fmt: skip
    path = checkpoint_path(folder, "step-", step)
    path.mkdir(parents=True)
    (path / MANIFEST).write_text(made.model_dump_json())


async def test_another_job_s_checkpoint_is_refused_before_any_agent_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "kept", 2)
    of = saving_in(tmp_path / "kept")
    asked = proposing(of, ("s1/0", "s2/0"), Here(), tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="is of another job: the computation is not the same"):
        await propose(*asked)


async def test_a_proposal_says_with_which_step_the_job_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, where all servers see the same."""
    of = saving_in(tmp_path / "kept")
    asked = proposing(of, ("s1/0", "s2/0"), Here(), tmp_path, monkeypatch)
    graph = load_graph(tmp_path / "graph.json")
    for begins in ("begins at step 0", "resumes after 2 steps"):
        with pytest.raises(AttributeError, match="hello"):  # What comes after needs agents.
            await propose(*asked)
        assert capsys.readouterr().out.count(f"the job {begins}") == 1
        if not (tmp_path / "kept").exists():
            save(tmp_path / "kept", 2, structure_hash=graph.structure_hash)


async def test_a_folder_that_is_perhaps_not_shared_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where it is mounted on some servers only, and its mount point is there on the others."""
    (tmp_path / "kept").mkdir()
    of = saving_in(tmp_path / "kept")
    for devices, is_told in ((("s1/0", "s2/0"), False), (("s1/0", "s3/0"), True)):
        asked = proposing(of, devices, Unmounted(), tmp_path, monkeypatch)
        with pytest.raises(AttributeError, match="hello"):  # What comes after needs agents.
            await propose(*asked)
        told = " ".join(capsys.readouterr().out.split())
        assert "the job resumes" in told
        assert ("ranks refuse one that is not shared" in told) is is_told
        assert ("s3: the job begins at step 0" in told) is is_told


async def test_servers_that_see_different_folders_are_named(tmp_path: Path) -> None:
    outlook = CheckpointOutlook({}, {"s1": "resumes", "s2": "begins", "s3": "begins"})
    assert outlook.beginnings() == {"resumes": "s1", "begins": "s2, s3"}


def test_what_a_graph_s_file_tells_of_a_job_is_what_its_ranks_save(tmp_path: Path) -> None:
    job = job_of(saving_in(tmp_path)).model_copy(update={"shards": 1})
    for rate in (1e-3, 2e-3):
        captured = capture(job.model, job.batch, OptimizerChoice("adamw", rate), job.seed)
        save_graph(captured.operators, tmp_path / f"{rate}.json")
    saved = captured_identity(job, tmp_path / "0.001.json")
    assert saved.structure_hash and saved.computation_hash
    save(tmp_path / "kept", 2, **{**saved.model_dump(), "tensors": {"model.w": "float32[2]"}})
    (one,) = checkpoints_in(tmp_path / "kept")
    other = captured_identity(job, tmp_path / "0.002.json")
    assert other.structure_hash == captured.operators.structure_hash != saved.structure_hash
    assert other.computation_hash == forward_hash(captured.operators)
    assert differences_between(one.manifest, other) == ()
    assert differences_between(one.manifest, other.model_copy(update={"computation_hash": "d"}))


async def test_a_server_that_gets_no_rank_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Here()
    of = saving_in(tmp_path / "kept")
    asked = proposing(of, ("s2/0",), launcher, tmp_path, monkeypatch)
    with pytest.raises(AttributeError, match="hello"):  # What comes after needs agents.
        await propose(*asked)
    assert launcher.asked == ["s2"]


def looking(launcher: Here, folder: Path) -> Tools:
    """As `doctor` has them, whose job asks no agent and no journal."""
    none = cast(Any, None)
    return Tools(none, none, cast(Any, launcher), folder, folder, Show())


async def test_doctor_tells_of_it(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    found = await job_outlook(saving_in(tmp_path / "kept"), looking(Here(), tmp_path))
    (one,) = of_job(found)
    assert (one.where, one.severity) == ("s1, s2, s3", "error") and "is no folder" in one.what
    assert "a job that has a rank there cannot begin" in one.why
    assert exit_code(found, {}) == UsageError.exit_code


async def test_doctor_warns_where_a_server_that_gets_no_rank_may_be_what_refuses(
    tmp_path: Path,
) -> None:
    """`apply` works where the placement needs no other server than those that take the folder."""
    (tmp_path / "kept").write_text("no folder")
    found = await job_outlook(saving_in(tmp_path / "kept"), looking(Unmounted(), tmp_path))
    refused, begins = of_job(found)
    assert (refused.where, refused.severity) == ("s3", "warning")
    assert "is no folder" in refused.what and "the servers that get ranks" in refused.why
    assert (begins.where, begins.severity) == ("s1, s2", "note")
    assert exit_code(found, {"s3": [refused]}) == 0


async def test_doctor_warns_of_a_folder_that_is_perhaps_not_shared(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    found = await job_outlook(saving_in(tmp_path / "kept"), looking(Unmounted(), tmp_path))
    resumes, begins = of_job(found)
    assert (resumes.where, begins.where) == ("s1, s2", "s3") and "at step 0" in begins.what
    for one in (resumes, begins):
        assert one.severity == "warning" and "not shared" in one.why and "mount" in one.remedy
    assert exit_code(found, {}) == 0


async def test_doctor_warns_where_a_server_cannot_look(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    found = await job_outlook(saving_in(tmp_path / "kept"), looking(Old(), tmp_path))
    one, other = of_job(found)
    assert one.where == "s1" and "cannot be looked at" in one.what and one.severity == "warning"
    assert other.where == "s2, s3" and "is no folder" in other.what and other.severity == "warning"
    assert exit_code(found, {"s1": [one]}) == 0


async def test_doctor_tells_with_which_step_the_job_begins(tmp_path: Path) -> None:
    tools = looking(Here(), tmp_path)

    async def told(folder: Path) -> Finding:
        (one,) = of_job(await job_outlook(saving_in(folder), tools))
        return one

    new = await told(tmp_path / "kept")
    save(tmp_path / "kept", 2)
    found, above = await told(tmp_path / "kept"), await told(tmp_path / "mount/kept")
    assert (new.severity, new.where) == ("note", "s1, s2, s3")
    assert "the job begins at step 0" in new.what and "the job resumes after 2 steps" in found.what
    assert above.severity == "error" and f"{tmp_path / 'mount'} is not there" in above.what
