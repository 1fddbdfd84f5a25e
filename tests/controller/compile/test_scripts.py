"""Tests which rails a script's collectives take, and what each server's program is told."""

from __future__ import annotations

from typing import Any

import pytest

from placewire.controller.compile.rail_pattern import (
    MOST_CONNECTIONS,
    MOST_CONTEXTS,
    pattern_shares,
    rail_pattern,
)
from placewire.controller.compile.scripts import (
    cut_from_bytes,
    planned_shares,
    rail_shares,
    script_specs,
)
from placewire.controller.errors import PlanError
from placewire.controller.plan.job import TorchrunJob
from placewire.controller.plan.plan import Plan
from placewire.controller.verify.rail_use import ENOUGH_BYTES, complaints, rail_rows
from placewire.job.contract.specification import Carried
from tests.controller.plans import plan, plan_document


def with_script(servers: int = 3, **more: Any) -> Plan:
    document = plan_document(servers)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py", **more}
    return plan(document)


def job_of(plan: Plan) -> TorchrunJob:
    assert isinstance(plan.job, TorchrunJob)
    return plan.job


def test_two_equal_rails_take_turns_by_thue_and_morse() -> None:
    assert rail_pattern((0.5, 0.5)) == (0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0)
    assert rail_pattern((1.0,)) == (0,)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.7, 0.3), (0.25,) * 4, (0.5, 0.25, 0.25)])
@pytest.mark.parametrize("processes", [2, 33, 64, 129, 2000])
def test_many_processes_have_few_connections_each(
    shares: tuple[float, ...], processes: int
) -> None:
    pattern = rail_pattern(shares, processes)
    assert len(pattern) * (processes - 1) <= max(
        MOST_CONNECTIONS, (len(shares) + 1) * (processes - 1)
    )
    assert min(pattern_shares(pattern, len(shares))) > 0


def test_the_contexts_are_those_of_the_whole_job() -> None:
    (first, _, _) = script_specs(of := with_script(processes=40), job_of(of))
    assert len(first.rail_pattern) == 8


@pytest.mark.parametrize(
    ("processes", "threads", "told"), [(1, None, 0), (2, None, 1), (1, 3, 3), (2, 3, 3)]
)
def test_threads_are_those_of_torchrun_unless_the_plan_says_more(
    processes: int, threads: int | None, told: int
) -> None:
    of = with_script(processes=processes, threads=threads)
    assert {one.threads for one in script_specs(of, job_of(of))} == {told}


def test_what_several_jobs_could_disturb_can_be_chosen() -> None:
    of = with_script(rendezvous_port=29_777)
    assert {one.master_tcp_port for one in script_specs(of, job_of(of))} == {29_777}


@pytest.mark.parametrize("rails", [2, 3, 4])
@pytest.mark.parametrize("period", [1, 2, 3, 4, 5, 7])
def test_whatever_comes_every_so_often_meets_every_rail_alike(rails: int, period: int) -> None:
    """Over all steps, each collective of a step uses every rail: none gets all the large ones."""
    pattern = rail_pattern((1 / rails,) * rails)
    assert len(pattern) <= MOST_CONTEXTS
    for first in range(period):
        met = [pattern[(first + period * k) % len(pattern)] for k in range(len(pattern) * period)]
        counts = [met.count(rail) for rail in range(rails)]
        assert max(counts) == min(counts), (period, first)


@pytest.mark.parametrize(
    "shares", [(0.7, 0.3), (2 / 3, 1 / 3), (0.25, 0.75), (0.5, 0.25, 0.25), (5 / 7, 2 / 7)]
)
def test_unequal_rails_get_their_shares(shares: tuple[float, ...]) -> None:
    pattern = rail_pattern(shares)
    assert len(pattern) <= MOST_CONTEXTS and len(pattern) % 2 == 1
    assert pattern_shares(pattern, len(shares)) == pytest.approx(shares, rel=0.1)


def test_a_rail_whose_uplink_is_narrow_gets_less() -> None:
    document = plan_document(4)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py"}
    document["cluster"]["pods"] = [
        {"name": "p1", "servers": ["s1", "s2"], "uplink": "1Gbit"},
        {"name": "p2", "servers": ["s3", "s4"], "uplink": {"a": "25Mbit", "b": "1Gbit"}},
    ]
    assert rail_shares(plan(document)) == pytest.approx({"a": 1 / 3, "b": 2 / 3})


def test_a_rail_too_slow_for_one_place_gets_none() -> None:
    pattern = rail_pattern((0.99, 0.01))
    assert pattern_shares(pattern, 2) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, ()),
        ("/srv/own/bin/python", ("/srv/own/bin/python",)),
        (["apptainer", "exec", "own.sif", "python3"], ("apptainer", "exec", "own.sif", "python3")),
    ],
)
def test_a_script_is_run_by_an_interpreter_of_its_own(given: Any, words: tuple[str, ...]) -> None:
    of = with_script(python=given)
    assert isinstance(of.job, TorchrunJob)
    assert {one.python for one in script_specs(of, of.job)} == {words}


def test_a_script_in_a_container_is_looked_for_there() -> None:
    """A command before the interpreter may show it other files than this machine's."""
    inside = with_script(script="/srv/none.py", python=["apptainer", "exec", "own.sif", "python3"])
    assert isinstance(inside.job, TorchrunJob) and inside.job.script == "/srv/none.py"
    with pytest.raises(PlanError, match="is no file"):
        with_script(script="/srv/none.py", python="/usr/bin/python3")


@pytest.mark.parametrize("given", ["../x", ["../x"], "", [], [""], ["-x"], 3, ["python", 3]])
def test_what_runs_a_script_is_a_command(given: Any) -> None:
    document = plan_document(2)
    document["job"] = {"kind": "torchrun", "script": "examples/ddp.py", "python": given}
    with pytest.raises(PlanError) as refused:
        plan(document)
    (line,) = [one for one in str(refused.value).splitlines() if "job.python" in one]
    assert "function" not in line and ("accepted: " in line or "give a path" in line)


@pytest.mark.parametrize(
    ("rates", "least_bytes"),
    [
        ((1e8, 1e8), 131_072), ((1e9, 1e9), 250_000), ((1e10, 1e10), 2_500_000),
        ((7e9, 3e9), 2_916_667), ((1e9,), 131_072),
    ],
)  # fmt: skip
def test_a_collective_is_cut_where_that_saves_a_millisecond(
    rates: tuple[float, ...], least_bytes: int
) -> None:
    assert cut_from_bytes(rates) == least_bytes


def test_every_server_is_told_the_same_of_rails_and_its_own_of_itself() -> None:
    of = with_script(processes=2, arguments=["--steps", "3"])
    assert isinstance(of.job, TorchrunJob)
    specs = script_specs(of, of.job)
    assert [(one.rank, one.world_size, one.device) for one in specs] == [
        (0, 3, "s1/0"), (1, 3, "s2/0"), (2, 3, "s3/0"),
    ]  # fmt: skip
    assert {one.rail_pattern for one in specs} == {rail_pattern((0.5, 0.5))}
    assert {one.master_address for one in specs} == {of.cluster.servers[0].management}
    assert [r.interface for r in specs[1].rail_interfaces] == ["pw-nic0", "pw-nic1"]
    assert specs[2].rail_interfaces[0].address == "10.7.0.3"
    assert specs[2].rail_interfaces[0].peers == ("10.7.0.1", "10.7.0.2")
    assert specs[0].processes == 2 and specs[0].arguments == ("--steps", "3")
    assert {one.rail_parts for one in specs} == {(0.5, 0.5)}


def test_a_plan_may_leave_collectives_whole() -> None:
    of = with_script(cut_collectives=False)
    assert isinstance(of.job, TorchrunJob)
    assert {one.rail_parts for one in script_specs(of, of.job)} == {()}


@pytest.mark.parametrize(("sent", "right"), [((52, 48), True), ((60, 40), False), ((3, 1), True)])
def test_a_nic_that_is_off_its_share_is_named(sent: tuple[int, int], right: bool) -> None:
    """A NIC that carried too little to judge counts as right."""
    of = with_script()
    unit = ENOUGH_BYTES // 50 if sum(sent) == 100 else 1000
    carried = {rail: number * unit for rail, number in zip("ab", sent, strict=True)}
    rows = rail_rows(of, {1: Carried(rank=1, seconds=2.0, sent_bytes=carried)})
    assert [(row.server, row.nic, row.sent_bytes) for row in rows] == [
        ("s2", "nic0", carried["a"]), ("s2", "nic1", carried["b"]),
    ]  # fmt: skip
    assert [row.planned_share for row in rows] == list(planned_shares(of).values()) == [0.5, 0.5]
    assert bool(complaints(rows)) is not right
