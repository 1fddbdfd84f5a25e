"""Every mistake in a plan names its YAML path, what was found and what would be accepted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.compile.network import bridge_name
from controller.errors import PlanError
from controller.plan import Plan
from controller.plan_file import load_plan, parse_plan
from plans import ROOT, plan, plan_document

Edit = Callable[[dict[str, Any]], None]


def _set(*path: Any, to: Any) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        here: Any = document
        for part in path[:-1]:
            here = here[part]
        here[path[-1]] = to

    return edit


def _drop(*path: Any) -> Edit:
    def edit(document: dict[str, Any]) -> None:
        here: Any = document
        for part in path[:-1]:
            here = here[part]
        del here[path[-1]]

    return edit


NIC = ("cluster", "servers", 1, "nics", 0)
SERVER = ("cluster", "servers", 1)


def _two_bridges_of_one_name(document: dict[str, Any]) -> None:
    nics = document["cluster"]["servers"][1]["nics"]
    nics[0]["name"] = "enp129s0f1np1"
    shortened = bridge_name(plan(document).cluster.servers[1].nics[0])
    nics[1]["name"] = shortened.removeprefix("pw-")


MISTAKES = {
    "unknown key": (_set("network", "sharring", to=1), "network.sharring", "sharing, verify"),
    "unknown nic key": (_set(*NIC, "speed", to=1), "cluster.servers[1].nics[0].speed", "rate"),
    "missing": (_drop(*NIC, "rail"), "cluster.servers[1].nics[0].rail", "missing"),
    "no unit": (_set(*NIC, "rate", to="50"), "cluster.servers[1].nics[0].rate", "Mbit"),
    "bad unit": (_set(*NIC, "rate", to="50MiB"), "cluster.servers[1].nics[0].rate", "'MiB'"),
    "number": (_set(*NIC, "rate", to=50), "cluster.servers[1].nics[0].rate", "like 50Mbit"),
    "zero rate": (_set(*NIC, "rate", to="0bit"), "cluster.servers[1].nics[0].rate", "more than 0"),
    "zero memory": (
        _set(*SERVER, "devices", 0, "memory", to="0GiB"),
        "cluster.servers[1].devices[0].memory",
        "more than 0",
    ),
    "double server": (_set(*SERVER, "name", to="s1"), "cluster.servers[1].name", "already taken"),
    "bad name": (_set(*SERVER, "name", to="S 1"), "cluster.servers[1].name", "lower case"),
    "long nic": (_set(*NIC, "name", to="n" * 16), "cluster.servers[1].nics[0].name", "at most 15"),
    "nic of dots": (_set(*NIC, "name", to=".."), "cluster.servers[1].nics[0].name", "single dots"),
    "nic of an option": (_set(*NIC, "name", to="-4"), "nics[0].name", "not an interface's name"),
    "nic of a path": (_set(*NIC, "name", to="a/b"), "nics[0].name", "not an interface's name"),
    "nic of a bridge's name": (_set(*NIC, "name", to="pw-nic1"), "nics[1].name", "rename one"),
    "bridges of one name": (_two_bridges_of_one_name, "nics[1].name", "rename one"),
    "no rail": (_set(*NIC, "rail", to=""), "cluster.servers[1].nics[0].rail", "not a name"),
    "two on a rail": (
        _set(*SERVER, "nics", 1, "rail", to="a"),
        "cluster.servers[1].nics[1].rail",
        "one NIC on a rail",
    ),
    "double nic": (_set(*SERVER, "nics", 1, "name", to="nic0"), "nics[1].name", "already taken"),
    "double address": (
        _set(*NIC, "address", to="10.7.0.1/24"),
        "cluster.servers[1].nics[0].address",
        "already taken",
    ),
    "outside subnet": (
        _set(*NIC, "address", to="10.8.0.2/24"),
        "cluster.servers[1].nics[0].address",
        "outside rail 'a'",
    ),
    "network address": (_set(*NIC, "address", to="10.7.0.0/24"), "nics[0].address", "network or"),
    "no prefix": (_set(*NIC, "address", to="10.7.0.2"), "nics[0].address", "at most /30"),
    "ipv6 nic": (_set(*NIC, "address", to="fd00::1/64"), "nics[0].address", "IPv6"),
    "ipv6 management": (_set(*SERVER, "management", to="fd00::1"), "[1].management", "IPv6"),
    "management on a rail": (_set(*SERVER, "management", to="10.7.0.9"), "management", "inside"),
    "gateway elsewhere": (_set(*NIC, "gateway", to="10.8.0.1"), "nics[0].gateway", "outside"),
    "no servers": (_set("cluster", "servers", to=[]), "cluster.servers", "at least 1"),
    "kind": (_set("job", "kind", to="train"), "job.kind", "'placed' or 'replay'"),
    "no such module": (_set("job", "model", to="examples.nix:f"), "job.model", "not found"),
    "no such function": (
        _set("job", "model", to="examples.models.mlp:nix"),
        "job.model",
        "no function 'nix'",
    ),
    "no model path": (_set("job", "model", to="mlp.py"), "job.model", "package.module:function"),
    "no such graph": (
        _set("job", to={"kind": "replay", "graph": "none.json", "steps": 1}),
        "job.graph",
        "no file",
    ),
    "no steps": (_set("job", "steps", to=0), "job.steps", "more than 0"),
    "engine": (_set("solve", "engine", to="gurobi"), "solve.engine", "'auto', 'heft' or 'single'"),
    "sharing": (_set("network", "sharing", to="job"), "network.sharing", "'strict'"),
    "tolerance": (
        _set("network", "verify", "tolerance", to="200%"),
        "network.verify.tolerance",
        "0 to 1",
    ),
    "unknown rail": (_set("network", "rails", to=["c"]), "network.rails[0]", "accepted: a, b"),
    "version": (_set("version", to=2), "version", "accepted: 1"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_its_path_and_what_would_do(name: str) -> None:
    edit, path, words = MISTAKES[name]
    document = plan_document()
    edit(document)
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    assert raised.value.exit_code == 3
    assert any(path in place and words in message for place, message in raised.value.mistakes), str(
        raised.value
    )


def test_overlapping_subnets_are_refused() -> None:
    document = plan_document()
    for k, server in enumerate(document["cluster"]["servers"]):
        server["nics"][1]["address"] = f"10.7.0.{k + 129}/25"
        server["nics"][0]["address"] = f"10.7.0.{k + 1}/24"
    with pytest.raises(PlanError, match="overlaps"):
        parse_plan(document, "test.yaml", base=ROOT)


def test_all_mistakes_are_told_at_once() -> None:
    document = plan_document()
    document["cluster"]["servers"][0]["nics"][0]["rate"] = "fast"
    document["job"]["steps"] = 0
    document["nmae"] = 1
    with pytest.raises(PlanError) as raised:
        parse_plan(document, "test.yaml", base=ROOT)
    assert {path for path, _ in raised.value.mistakes} == {
        "cluster.servers[0].nics[0].rate", "job.steps", "nmae",
    }  # fmt: skip


def test_a_key_given_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("version: 1\nname: a\nname: b\n")
    with pytest.raises(PlanError, match="'name' occurs twice"):
        load_plan(file)


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "\tx"])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    with pytest.raises(PlanError):
        load_plan(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path / "none.yaml")


def test_units_arrive_as_one() -> None:
    plan = parse_plan(plan_document(), "test.yaml", base=ROOT)
    assert plan.cluster.setup_latency_seconds == pytest.approx(200e-6)
    assert plan.cluster.intra_server_bits_per_second == 10e9
    nic = plan.cluster.servers[2].nics[1]
    assert (nic.rate_bits_per_second, nic.ip, str(nic.network)) == (50e6, "10.7.1.3", "10.7.1.0/24")
    assert plan.cluster.servers[0].devices[0].memory_bytes == 2**30
    assert plan.network.verify_settings.tolerance == 0.10


def test_the_shipped_plans_are_valid() -> None:
    plans = sorted((ROOT / "examples" / "plans").glob("*.yaml"))
    assert plans
    for file in plans:
        assert isinstance(load_plan(file), Plan)


def test_the_model_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "explosive.py").write_text("raise SystemExit\n\ndef training_step(): ...\n")
    document = plan_document()
    document["job"]["model"] = "explosive:training_step"
    assert parse_plan(document, "test.yaml", base=tmp_path).name == "small"
