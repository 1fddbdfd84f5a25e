"""The links, commands, files and plan keys in documents exist."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest

from placewire.controller.commands.provision import look_through
from placewire.controller.plan.plan_file import load_plan
from placewire.controller.provision.inventory import as_data, inventory
from placewire.controller.provision.playbook import host_variables
from tests.documents import (
    DOCUMENTS,
    PROGRAMS,
    anchors,
    blocks,
    commands,
    inventories,
    name_of,
    plan_keys,
    spans,
    what_is_wrong,
)
from tests.paths import ROOT

_FOLDERS = (
    "agent|benchmarks|controller|deploy|docs|examples|optimizer|oracle|playbooks|reference|tests"
)

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = document.parent / path if path else document
        assert there.exists(), f"{path} is not there"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


@each_document
def test_commands_are_those_that_there_are(document: Path) -> None:
    for words, as_it_stands in commands(document.read_text()):
        assert (wrong := what_is_wrong(words, as_it_stands=as_it_stands)) is None, wrong


@each_document
def test_make_targets_and_modules_are_there(document: Path) -> None:
    text = document.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    code = [*spans(text), *(line for block in blocks(text) for line in block)]
    for line in code:
        for target in re.findall(r"^(?:\$ )?make ([a-z][a-z-]*)", line):
            assert target in targets, f"there is no `make {target}`"
        for module in re.findall(r"python3? -m ([a-z_.]+)", line):
            assert importlib.util.find_spec(module) is not None, f"there is no module {module}"


@each_document
def test_files_and_keys_that_are_named_are_there(document: Path) -> None:
    keys = plan_keys()
    for span in spans(document.read_text()):
        if re.fullmatch(rf"(?:{_FOLDERS})/[\w./-]+", span):
            assert (ROOT / span).exists() or (document.parent / span).exists(), f"{span} is gone"
        if re.fullmatch(r"(?:cluster|job|launch|solve|network)(?:\.(?!py$)[a-z_]+|\[\])+", span):
            assert span.replace("[]", "") in keys, f"a plan has no {span}"


def test_inventories_are_taken_as_they_stand(tmp_path: Path) -> None:
    """The reader of `controller provision --inventory` takes them beside the tutorial's plan."""
    plan = load_plan(ROOT / "examples" / "plans" / "two-servers.yaml")
    servers = [server.name for server in plan.cluster.servers]
    derived, own = tmp_path / "plan.yaml", tmp_path / "own.yaml"
    urls = dict.fromkeys(servers, "https://10.9.0.254:7440")
    derived.write_text(as_data(inventory(plan, servers, urls)))
    told = [text for document in DOCUMENTS for text in inventories(document.read_text())]
    assert told, "docs/cluster.md has one"
    for text in told:
        own.write_text(text)
        assert look_through([derived, own], servers) == {}
        assert set(host_variables([own])) == set(servers), text


def test_plans_that_documents_show_whole_are_accepted(tmp_path: Path) -> None:
    shown = [
        block for d in DOCUMENTS for block in re.findall(r"(?:^ {4,}\S.*\n)+", d.read_text(), re.M)
    ]
    whole = [text for one in shown if (text := textwrap.dedent(one)).startswith("version: 1\n")]
    assert whole, "how to run a script has one"
    for text in whole:
        (tmp_path / "plan.yaml").write_text(text)
        load_plan(tmp_path / "plan.yaml", runs_job=True)


@each_document
def test_nothing_waits_to_be_filled_in(document: Path) -> None:
    text = document.read_text()
    assert not re.findall(r"^[A-Z]{3,}$|\b(?:TODO|TBD|FIXME)\b", text, re.M)


def test_every_document_is_on_the_map() -> None:
    """docs/README.md, or the README of its own folder, links to it."""
    linked = set()
    for page in (ROOT / "docs").rglob("README.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            linked.add((page.parent / target).resolve())
    there = {d for d in DOCUMENTS if d.name != "README.md"}
    assert there <= linked, [name_of(d) for d in sorted(there - linked)]


def test_every_command_is_told_of_outside_the_reference() -> None:
    """Some guide or explanation says when to use each command."""
    guides = [d for d in DOCUMENTS if d.parent.name != "reference"]
    text = "\n".join(d.read_text() for d in guides)
    for program, parser in PROGRAMS.items():
        for name in next(a.choices or () for a in parser._actions if a.dest == "command"):
            assert re.search(rf"\b{program} {name}\b", text), f"{program} {name}"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("controller aply plan.yaml", "no controller aply"),
        ("controller apply plan.yaml --network", "no --network"),
        ("controller apply", "is refused"),
        ("controller lab upp plan.yaml", "no controller upp"),
        ("agent enrol --token x", "no --token"),
        ("optimizer solve g.json --engine best", "is refused"),
    ],
)
def test_a_command_that_is_none_would_be_found(line: str, wrong: str) -> None:
    (found,) = commands(f"As in:\n\n    {line}\n")
    told = what_is_wrong(found[0], as_it_stands=found[1])
    assert told is not None and wrong in told
