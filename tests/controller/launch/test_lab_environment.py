"""What starts a lab's programs runs as root; the plan's variables are only for the programs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import placewire
from placewire.controller.errors import JobFailed
from placewire.controller.lab.lab import Lab
from placewire.controller.lab.record import LabRecord, ServerRecord
from placewire.controller.launch import local, programs
from placewire.controller.launch.lab import LabLauncher
from placewire.job.contract.specification import ScriptSpec
from tests.controller.launch.rank_programs import specs
from tests.job.test_script import spec

PLANS = {"LD_PRELOAD": "/home/user/evil.so", "PATH": "/home/user/bin", "PYTHONPATH": "/home/user/p"}


def lab_of_two() -> Lab:
    servers = tuple(
        ServerRecord(name=name, namespace=f"pw-none-{name}", management_address="10.9.0.1")
        for name in ("s1", "s2")
    )
    return Lab(
        LabRecord(
            name="none",
            servers=servers,
            controller_namespace="pw-none-c",
            controller_address="10.9.0.254",
            namespaces=(),
        )
    )


@pytest.mark.parametrize("what", ["rank", "script", "program"])
async def test_a_plan_s_variables_reach_no_helper_that_is_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    seen: list[tuple[Sequence[str], dict[str, str], bytes]] = []
    specification: list[ScriptSpec] = []

    async def begin(
        argv: Sequence[str], *, environment: dict[str, str], pass_fds: Sequence[int] = (), **_: Any
    ) -> None:
        files = [number for number in pass_fds if f"/dev/fd/{number}" == argv[-1]]
        seen.append((argv, dict(environment), b"".join(os.pread(n, 99_999, 0) for n in files)))
        if what == "script":
            (file,) = {*pass_fds} - {*files}
            specification.append(ScriptSpec.model_validate_json(os.pread(file, 99_999, 0)))
        raise FileNotFoundError(2, "stop here")

    monkeypatch.setattr(local, "begin", begin)
    monkeypatch.setattr(programs, "begin", begin)
    launcher = LabLauncher(lab_of_two(), workdir=tmp_path, environment=PLANS)
    with pytest.raises(JobFailed, match="stop here"):
        if what == "rank":
            await launcher.start(specs(1)[0])
        elif what == "script":
            await launcher.start(spec(tmp_path / "x.py"))
        else:
            await launcher.run("s1", ["-m", "this"], on_line=print)
    ((argv, environment, described),) = seen
    assert argv[0] == "nsenter" and "setpriv" in argv
    for name, value in PLANS.items():
        assert environment.get(name) == os.environ.get(name) and value not in " ".join(argv)
    program = json.loads(described)
    given = program["environment"]
    if what == "script":
        # What starts it is ours: it imports what this process does, from no folder of the user's.
        assert given == {"PYTHONPATH": str(Path(placewire.__file__).parents[1].resolve())}
        assert program["words"][:4] == ["-P", "-s", "-m", "placewire.job"]
        given = specification[0].environment
    else:
        assert program["words"][:2] == ["-m", "placewire.job" if what == "rank" else "this"]
    for name, value in PLANS.items():
        assert value in given[name].split(os.pathsep)
