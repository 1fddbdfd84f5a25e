"""docs/reference is what `make reference` writes now, and agrees with the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypedDict

import pytest
import yaml

import placewire.agent.main
import placewire.controller.cli
import placewire.optimizer.cli
from placewire.agent.contract.config import AgentConfig
from placewire.controller.plan.plan import Plan
from placewire.controller.plan.plan_file import load_plan
from reference.__main__ import write
from reference.answers import ANSWERS, meanings
from reference.commands import commands_of
from reference.pages import pages
from reference.text import WIDTH, paragraph
from tests.documents import plan_keys
from tests.paths import ROOT

FOLDER = ROOT / "docs" / "reference"
PLAN = (FOLDER / "plan-yaml.md").read_text()


@pytest.fixture(autouse=True)
def _as_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLACEWIRE_STATE_DIR", raising=False)


def test_the_reference_is_what_the_code_gives_now() -> None:
    made = pages()
    assert {file.name for file in FOLDER.iterdir()} == set(made)
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, f"{name}: `make reference`"


def test_what_is_no_page_any_more_goes(tmp_path: Path) -> None:
    (tmp_path / "former.md").write_text("gone")
    write(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == set(pages())


def test_every_key_of_a_plan_and_of_an_agent_has_an_entry() -> None:
    entries = set(re.findall(r"^- `([a-z_]+)`: ", PLAN, re.M))
    assert entries == {key.rpartition(".")[2] for key in plan_keys()}
    assert {"memory", "time_scale", "known_hosts"} <= entries
    agents = set(re.findall(r"^- `([a-z_]+)`: ", (FOLDER / "agent-json.md").read_text(), re.M))
    assert agents == set(AgentConfig.model_fields)


def test_defaults_are_those_of_a_plan_that_says_nothing() -> None:
    plan = load_plan(ROOT / "examples" / "plans" / "two-servers.yaml")
    document = yaml.safe_load((ROOT / "examples" / "plans" / "two-servers.yaml").read_text())
    bare = Plan.model_validate({k: v for k, v in document.items() if k not in ("solve", "network")})
    network, solve, nic = bare.network, bare.solve, plan.cluster.servers[0].nics[0]
    told = {
        "sharing": network.sharing, "on_exit": network.on_exit, "drift": network.drift,
        "floor": f"{network.floor:.0%}", "lease": f"{network.lease_seconds:g}s",
        "tolerance": f"{network.verify_settings.tolerance:.0%}",
        "seconds": f"{network.verify_settings.seconds:g}s",
        "calibrate": str(network.calibrate).lower(),
        "engine": solve.engine, "gap": f"{solve.gap:.0%}",
        "time_limit": f"{solve.time_limit_seconds:g}s",
        "background": f"{nic.background_bits_per_second:g}bit", "mtu": str(nic.mtu_bytes),
    }  # fmt: skip
    joined = re.sub(r"\n  ", " ", PLAN.replace("\\\n", "\n\n"))
    for key, default in told.items():
        assert re.search(rf"^- `{key}`: .*; default `{default}`$", joined, re.M), key


def test_every_command_that_prints_json_says_its_keys() -> None:
    programs = {
        "controller": placewire.controller.cli.parser(),
        "optimizer": placewire.optimizer.cli.parser(with_arguments=True),
        "agent": placewire.agent.main.parser(),
    }
    printing = {
        one.prog
        for parser in programs.values()
        for one in commands_of(parser)
        if "--json" in one._option_string_actions
    }
    assert printing == {f"{p} {c}" for p, commands in ANSWERS.items() for c in commands if c}


@pytest.mark.parametrize(
    "words",
    [
        "controller history", "controller lab list", "controller authority issue s1 --out made",
        "controller authority deny s1", "controller logs nothing", "optimizer engines",
        "optimizer reductions",
    ],
)  # fmt: skip
def test_a_command_prints_the_keys_that_it_says(
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PLACEWIRE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    program, *arguments = words.split()
    main = {"controller": placewire.controller.cli.main, "optimizer": placewire.optimizer.cli.main}
    code: object = None
    try:
        main[program]([*arguments, "--json"])
    except SystemExit as ended:
        code = ended.code
    printed = set(json.loads(capsys.readouterr().out)) - {"version"}
    command = next(one for one in ANSWERS[program] if one and " ".join(arguments).startswith(one))
    (said,) = ANSWERS[program]["" if code else command]
    assert isinstance(said, type) and printed
    assert printed <= set(meanings(said))


def test_a_key_that_nothing_is_said_of_is_no_answer() -> None:
    class Silent(TypedDict):
        key: int

    with pytest.raises(TypeError, match="says nothing of its key"):
        meanings(Silent)


@pytest.mark.parametrize("file", sorted(FOLDER.iterdir()), ids=lambda file: file.name)
def test_lines_fit_a_terminal(file: Path) -> None:
    assert all(len(line) <= WIDTH for line in file.read_text().splitlines())


def test_what_stands_in_backticks_is_not_torn_apart() -> None:
    text = paragraph("word " * 18 + "`one span of several words` and more")
    assert "`one span of several words`" in text.splitlines()[1]
