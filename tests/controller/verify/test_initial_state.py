"""Is a file refused before anything is changed that ranks could not begin from?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from placewire.controller.commands.doctor import exit_code, job_outlook, of_job
from placewire.controller.errors import UsageError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.plan.plan import Plan
from placewire.controller.story.propose import propose
from placewire.controller.verify.checkpoint_folder import CheckpointOutlook
from placewire.controller.verify.initial_state import initial_state_problems
from placewire.optimizer.graph.graph_file import load_graph
from tests.controller.plans import plan, plan_document
from tests.controller.verify.test_checkpoint_folder import (
    Here,
    Old,
    job_of,
    looking,
    proposing,
    save,
)


def beginning_from(file: Path, **job: Any) -> Plan:
    document = plan_document()
    document["job"] |= {"state": {"file": str(file)}, **job}
    return plan(document)


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """No format has it."""
    (tmp_path / "values").write_text("no tensors at all")
    return tmp_path / "values"


async def test_a_proposal_is_refused_before_any_agent_is_asked(
    wrong: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a server before could not be looked at; a server without a rank is not asked."""
    for launcher, where in ((Here(), "s1"), (Old(), "s2")):
        asked = proposing(beginning_from(wrong), ("s1/0", "s2/0"), launcher, tmp_path, monkeypatch)
        with pytest.raises(UsageError, match=f"{wrong} is no file of tensors") as raised:
            await propose(*asked)
        assert raised.value.where == where and "s3" not in launcher.asked


async def test_a_job_that_resumes_does_not_need_the_file(
    wrong: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = beginning_from(wrong, checkpoint={"folder": str(tmp_path / "kept")})
    asked = proposing(of, ("s1/0",), Here(), tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="is no file of tensors"):
        await propose(*asked)
    save(tmp_path / "kept", 2, structure_hash=load_graph(tmp_path / "graph.json").structure_hash)
    with pytest.raises(AttributeError, match="hello"):  # What comes after needs agents.
        await propose(*asked)


async def test_a_file_on_this_machine_is_not_taken_for_the_servers(wrong: Path) -> None:
    none, launcher = CheckpointOutlook({}, {}), NoLauncher()
    job = job_of(beginning_from(wrong))
    assert await initial_state_problems(job, none, launcher, ("s1",)) == {}


async def test_doctor_tells_of_it(wrong: Path, tmp_path: Path) -> None:
    found = await job_outlook(beginning_from(wrong), looking(Here(), tmp_path))
    (one,) = of_job(found)
    assert (one.where, one.severity) == ("s1, s2, s3", "error")
    assert "is no file of tensors" in one.what and "a job that has a rank there" in one.why
    assert exit_code(found, {}) == UsageError.exit_code


async def test_doctor_warns_where_a_server_cannot_look(wrong: Path, tmp_path: Path) -> None:
    found = await job_outlook(beginning_from(wrong), looking(Old(), tmp_path))
    one, other = of_job(found)
    assert one.where == "s1" and "job.state.file cannot be looked at" in one.what
    assert one.severity == "warning" and "job.python" in one.remedy
    assert other.where == "s2, s3" and "is no file of tensors" in other.what
    assert other.severity == "warning" and "the servers that get ranks" in other.why
    assert exit_code(found, {"s1": [one]}) == 0
