"""A lab of two pods of two servers, whose uplinks are narrower than the NICs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from placewire.controller.compile.transfers import promises
from placewire.controller.lab import Lab, lab_down, lab_up
from placewire.controller.lab.batches import rail_batch, rail_limits
from placewire.controller.lab.shape import shape_of
from placewire.optimizer.check.check import check
from placewire.optimizer.engines.place import place
from placewire.optimizer.explain.uplinks import uplinks_used
from placewire.optimizer.network.script_allocation import allocate
from placewire.optimizer.problem import Problem, SolveSettings
from tests.controller.plans import plan, plan_document
from tests.optimizer.cases import graph
from tests.optimizer.check.checked_placements import placement_of
from tests.paths import ROOT

NAME = f"pods{os.getpid()}"
PODS = {"s1": "p1", "s2": "p1", "s3": "p2", "s4": "p2"}


def document() -> dict[str, Any]:
    full = plan_document(4, name=NAME, rate="30Mbit")
    for server in full["cluster"]["servers"]:
        server["nics"] = server["nics"][:1]
    full["cluster"]["pods"] = [
        {"name": "p1", "servers": ["s1", "s2"], "uplink": "10Mbit"},
        {"name": "p2", "servers": ["s3", "s4"], "uplink": {"a": "10Mbit"}},
    ]
    full["job"] = {"kind": "torchrun", "script": "examples/ddp.py", "traffic": "even"}
    del full["solve"]
    # Tests beside this one take processor time, which must not count as a broken promise.
    full["network"] = {"sharing": "strict", "verify": {"seconds": 2, "tolerance": "20%"}}
    return full


def test_every_server_is_on_the_bridge_of_its_pod() -> None:
    shape = shape_of(plan(document()))
    lines = rail_batch(shape, "a")
    assert [line.split()[4] for line in lines if line.startswith("link set down")] == [
        "pod1", "pod1", "pod2", "pod2",
    ]  # fmt: skip
    buckets = [line.split() for line in rail_limits(shape, "a") if " tbf " in line]
    limits = {words[3]: words[words.index("rate") + 1] for words in buckets}
    assert {limits[end] for end in ("core1", "in1", "core2", "in2")} == {"10000000bit"}
    assert {limits[end] for end in ("port1", "up4")} == {"30000000bit"}


def test_auto_avoids_the_uplink_and_the_check_refuses_rates_that_overload_it() -> None:
    """Six branches of 80 ms each, for which 200 kB are sent and as much comes back: over the uplink
    that takes 0.17 s each way, and in the pod a third of it."""
    cluster = plan(document()).payload_cluster
    branches = [f"b{k}" for k in range(6)]
    made = graph(
        {"A": 0.0, **dict.fromkeys(branches, 0.08), "Z": 0.0},
        [("A", branches, 200_000), *((b, ["Z"], 200_000) for b in branches)],
    )
    problem = Problem(made, cluster, "strict")
    settings = SolveSettings(gap=0.0, moves=3000, time_limit_seconds=600, certify=0.0)
    found = place(problem, "auto", settings)
    assert len({PODS[name.split("/")[0]] for name in found.devices_used}) == 1
    assert len(found.devices_used) == 2 and uplinks_used(found, {}) == ()

    across = placement_of(problem, [0, 0, 0, 1, 1, 2, 3, 0])
    assert check(made, across) == () and across.step_seconds > found.step_seconds
    uplink = cluster.uplink_rates[0, 0]
    rows = tuple(
        (s, t, rail, uplink if PODS[s] != PODS[t] else rate)
        for s, t, rail, rate in across.rates_bits_per_second
    )
    said = check(made, across.model_copy(update={"rates_bits_per_second": rows}))
    assert any("leaves pod p1; its uplink carries" in violation.what for violation in said)


def test_the_promises_of_a_job_without_rates_fit_into_the_uplinks() -> None:
    """Every NIC sends to one destination; those that cross are paced to what the uplink carries."""
    full = document()
    full["network"]["sharing"] = "job"
    made = plan(full)
    cluster = made.payload_cluster
    traffic = {"s1": {"s3": 1.0}, "s2": {"s4": 1.0}, "s3": {"s4": 1.0}, "s4": {"s3": 1.0}}
    found = promises(made, allocate(cluster, traffic, "job", made.network.floor))
    rates = {
        (one.transfer.source, one.transfer.destination): one.transfer.promised_bits_per_second
        for one in found
    }
    out = sum(rate for (s, t), rate in rates.items() if PODS[s] == "p1" != PODS[t])
    assert 0 < out <= cluster.uplink_rates[0, 0] * (1 + 1e-9)
    assert all(one.transfer.paced for one in found if PODS[one.transfer.source] == "p1")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = lab_up(plan(document()))
    try:
        yield made
    finally:
        lab_down(NAME)


def applied(lab: Lab, folder: Path, full: dict[str, Any]) -> tuple[int, str, list[dict[str, Any]]]:
    """(exit code, output, the measured links) of `controller apply`."""
    (folder / "nothing.py").write_text("print('nothing')\n")
    full["job"] |= {"script": "nothing.py", "workdir": str(folder)}
    file, report = folder / "plan.yaml", folder / "run.json"
    file.write_text(yaml.safe_dump(full, sort_keys=False))
    argv = [sys.executable, "-m", "placewire.controller.cli"]
    argv += ["apply", str(file), "--yes", "--out", str(report)]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=400,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    links = json.loads(report.read_text())["links"] if report.exists() else []
    return done.returncode, done.stdout + done.stderr, links


@pytest.mark.network
@pytest.mark.lab
def test_promised_rates_hold_at_the_same_time_and_respect_the_uplinks(
    lab: Lab, tmp_path: Path
) -> None:
    code, output, links = applied(lab, tmp_path, document())
    assert code == 0, output
    assert len(links) == 12 and all(link["within_tolerance"] for link in links), links
    uplink = plan(document()).payload_cluster.uplink_rates[0, 0]
    for pod in ("p1", "p2"):
        out = [link for link in links if PODS[link["source"]] == pod != PODS[link["destination"]]]
        assert sum(link["promised_bits_per_second"] for link in out) == pytest.approx(uplink)
        # What is left of the uplink's 10 Mbit/s are headers and acknowledgements.
        assert sum(link["measured_bits_per_second"] for link in out) < 10e6


@pytest.mark.network
@pytest.mark.lab
def test_a_plan_that_leaves_the_pods_out_promises_what_the_network_does_not_carry(
    lab: Lab, tmp_path: Path
) -> None:
    full = document()
    del full["cluster"]["pods"]
    code, output, _ = applied(lab, tmp_path, full)
    assert code != 0 and "promised rates were not delivered" in output, output
