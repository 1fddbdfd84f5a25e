"""`controller verify --snapshot` and `--against-snapshot`; the servers' answers are given."""

from __future__ import annotations

import copy
import json
import resource
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.controller.cli import main
from placewire.controller.commands import session
from placewire.controller.errors import LaunchFailed, UsageError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.launch.programs import Ended
from placewire.controller.launch.ssh import SshLauncher
from placewire.controller.launch.ssh_connecting import Login
from placewire.controller.launch.ssh_connection import SshServer, Surroundings
from placewire.controller.verify.snapshots import differing
from placewire.oracle.namespace import SOURCE
from placewire.oracle.snapshot import VERSION
from tests.controller.plans import plan_document

SERVERS = ("s1", "s2")


def snapshot(mtu: int = 1500) -> dict[str, Any]:
    return {"version": VERSION, "facts": {"link": {"nic0": {"MTU": mtu}}}}


class Answering(NoLauncher):
    """Answers for every server; keeps the text of the program that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, Any] = {server: snapshot() for server in SERVERS}
        self.sources: list[bytes] = []

    async def read(self, server: str, source: bytes) -> Ended:  # type: ignore[override]
        self.sources.append(source)
        answer = self.answers[server]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Ended):
            return answer
        return Ended(0, json.dumps(answer).encode(), ())


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Answering:
    made = Answering()
    monkeypatch.setattr(session, "_launcher", lambda plan, file: made)
    return made


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `controller verify` with these arguments; returns (exit code, output, errors)."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(plan_document(len(SERVERS))))

    def verify(*words: str | Path) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as raised:
            main([
                "verify", str(plan), "--no-lab", "--state-dir", str(tmp_path / "state"),
                *map(str, words),
            ])  # fmt: skip
        captured = capsys.readouterr()
        return raised.value.code, captured.out, captured.err

    return verify


def test_what_was_and_what_is(tmp_path: Path, launcher: Answering, run: Any) -> None:
    file = tmp_path / "before.json"
    code, said, _ = run("--snapshot", file)
    assert code == 0 and "2 servers" in said
    assert launcher.sources == [SOURCE.read_bytes()] * 2, (
        "the oracle's own text goes to each server"
    )
    assert json.loads(file.read_text())["servers"] == launcher.answers
    code, said, _ = run("--against-snapshot", file)
    assert code == 0 and "nothing differs" in said
    launcher.answers["s2"] = snapshot(9000)
    code, said, error = run("--against-snapshot", file)
    assert code == 6 and "s2: link nic0: MTU was 1500, is 9000" in said
    assert error.startswith(f"controller: s2: 1 thing differs from the snapshot {file}")
    assert not (tmp_path / "state").exists(), "no journal, no authority: no agent is asked"


def test_a_document_tells_it_too(tmp_path: Path, launcher: Answering, run: Any) -> None:
    file = tmp_path / "before.json"
    written = json.loads(run("--snapshot", file, "--json")[1])
    assert written == {"version": 1, "snapshot": str(file)}
    compared = json.loads(run("--against-snapshot", file, "--json")[1])
    assert compared == {"version": 1, "differences": {}}
    launcher.answers["s1"] = snapshot(9000)
    code, said, _ = run("--against-snapshot", file, "--json")
    document = json.loads(said)
    assert code == document["exit_code"] == 6
    assert document["differences"] == {"s1": ["link nic0: MTU was 1500, is 9000"]}


def test_a_snapshot_replaces_no_file(tmp_path: Path, launcher: Answering, run: Any) -> None:
    file = tmp_path / "before.json"
    file.write_text("of yesterday")
    code, _, error = run("--snapshot", file)
    assert code == 2 and "is there already" in error and launcher.sources == []
    assert file.read_text() == "of yesterday"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            Ended(2, b"", ("ovs-vsctl: database connection failed (Permission denied)",)),
            "Permission",
        ),
        (Ended(127, b"", ("sh: 1: python3: not found",)), "python3: not found"),
        (Ended(0, b"Welcome to this server!\n", ()), "is no JSON"),
        (Ended(0, b"[" * 200_000, ()), "is no JSON"),
        (
            LaunchFailed("SSH cannot be reached", where="s2", remedy="look at sshd"),
            "look at sshd; or",
        ),
    ],
)
def test_a_server_that_cannot_be_read_is_refused_with_the_way_by_hand(
    tmp_path: Path, launcher: Answering, run: Any, answer: Any, told: str
) -> None:
    launcher.answers["s2"] = answer
    file = tmp_path / "before.json"
    code, _, error = run("--snapshot", file)
    assert code == 2 and "s2: " in error and told in error and "placewire.oracle take" in error
    assert not file.exists(), "no half of a snapshot"


def test_a_full_disk_leaves_no_half_of_a_snapshot(
    tmp_path: Path, launcher: Answering, run: Any
) -> None:
    launcher.answers["s1"]["facts"]["link"] = {f"nic{k}": {"MTU": 1500} for k in range(5000)}
    file, before = tmp_path / "before.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        code, _, error = run("--snapshot", file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2 and f"{file}: not written" in error and not file.exists()
    assert run("--snapshot", file)[0] == 0


def test_a_file_that_is_nested_too_deeply_is_refused(
    tmp_path: Path, launcher: Answering, run: Any
) -> None:
    file = tmp_path / "before.json"
    file.write_text("[" * 200_000)
    code, _, error = run("--against-snapshot", file)
    assert code == 2 and f"{file}: cannot be read" in error


def test_a_snapshot_that_is_nested_too_deeply_to_be_told_is_refused(tmp_path: Path) -> None:
    """A server's user may print anything."""
    deep = {"version": VERSION, "facts": {"link": {"nic0": json.loads("[" * 700 + "]" * 700)}}}
    plain = {"version": VERSION, "facts": {"link": {"nic0": 1}}}
    with pytest.raises(UsageError, match="nested deeper than one of any server") as refused:
        differing(tmp_path, {"s1": plain}, {"s1": deep})
    assert refused.value.where == "s1"


def test_without_a_way_to_the_servers_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    monkeypatch.setattr(session, "_launcher", lambda plan, file: NoLauncher())
    code, _, error = run("--snapshot", tmp_path / "before.json")
    assert code == 2 and "s1: the plan does not say how to reach its servers" in error
    assert "add `launch: {kind: ssh, user: NAME}` to the plan; or by hand" in error
    assert "as root on that server: `/opt/placewire/.venv/bin/python -m placewire.oracle" in error


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1}', '{"version": 9, "servers": {}}'])
def test_a_file_that_is_no_snapshot_is_refused(
    tmp_path: Path, launcher: Answering, run: Any, text: str
) -> None:
    file = tmp_path / "before.json"
    file.write_text(text)
    code, _, error = run("--against-snapshot", file)
    assert code == 2 and str(file) in error and launcher.sources == []


def test_servers_that_came_and_went_are_told(tmp_path: Path, launcher: Answering, run: Any) -> None:
    file = tmp_path / "before.json"
    run("--snapshot", file)
    document = json.loads(file.read_text())
    document["servers"]["s9"] = document["servers"].pop("s1")
    file.write_text(json.dumps(document))
    code, said, _ = run("--against-snapshot", file)
    assert code == 6
    assert "s1: is in the plan, and not in the snapshot" in said
    assert "s9: is in the snapshot, and not in the plan: not looked at" in said
    older = copy.deepcopy(launcher.answers)
    older["s2"]["version"] = VERSION + 1
    document["servers"] = older
    file.write_text(json.dumps(document))
    code, _, error = run("--against-snapshot", file)
    assert code == 2 and "one release" in error


async def test_over_ssh_the_text_of_the_program_is_its_standard_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str, bytes]] = []

    def answer(on: SshServer, script: str, given: bytes = b"") -> tuple[int, str, str]:
        asked.append((on.name, script, given))
        return 3, "said", "warned\n"

    monkeypatch.setattr(SshServer, "run", answer)
    around = Surroundings("/opt/placewire/.venv/bin/python", None, {"SECRET": "x"})
    launcher = SshLauncher({"s1": "10.9.0.1"}, Login(), around, plan="memory")
    ended = await launcher.read("s1", b"print(1)")
    assert ended == Ended(3, b"said", ("warned",))
    assert [(name, given) for name, _, given in asked] == [("s1", b"print(1)")]
    assert asked[0][1].endswith("exec python3 -I -") and "SECRET" not in asked[0][1]
