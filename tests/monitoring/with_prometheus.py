"""A real Prometheus loads the alerts, scrapes the agents of a lab and a run there, and answers what
the dashboard asks.

`make test-monitoring` unpacks Prometheus and runs this; `make test` does not. It needs root.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from placewire.controller.lab import find_lab
from placewire.controller.metrics.serving import SOCKET
from tests.end_to_end.cluster import SERVERS, TestCluster
from tests.monitoring import run_in_memory as memory
from tests.monitoring.deployed import ALERTS, CONFIGURATION, alerts, of_dashboard, panels
from tests.monitoring.prometheus_server import Prometheus, program, prometheus
from tests.monitoring.run_in_memory import run_in_memory

CASES = Path(__file__).with_name("alerts_test.yaml")
PATIENCE_SECONDS = 300.0
# What a healthy run of the small model has nothing of.
EMPTY_BY_DESIGN = {
    'placewire_run_metric{plan=~".*"}': "its training step reports nothing beside its loss",
    'time() - min(placewire_drift_since_timestamp_seconds{server=~".*"})': "nothing differs",
}
# Whatever the machine is busy with, these would be wrong.
WRONG_WHILE_ALL_IS_WELL = {
    "PlacewireAgentDown", "PlacewireDriftNotMended", "PlacewireNotPutBack", "PlacewireOwedToNic",
    "PlacewireRankGone", "PlacewireRunEndedEarly",
}  # fmt: skip


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("promtool"), *words], capture_output=True, text=True)


def test_prometheus_accepts_the_example_and_the_alerts() -> None:
    done = promtool("check", "config", CONFIGURATION)
    assert done.returncode == 0 and f"{len(alerts())} rules found" in done.stdout, done.stderr


def test_alerts_fire_where_they_are_to_and_nowhere_else() -> None:
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("index", range(len(alerts())), ids=lambda k: str(alerts()[k]["alert"]))
@pytest.mark.parametrize("expression", ["vector(0) > 1", "always"])
def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_not(
    index: int, expression: str, tmp_path: Path
) -> None:
    """Else its condition could be anything: with another, its cases fail."""
    groups = yaml.safe_load(ALERTS.read_text())
    rule = [rule for group in groups["groups"] for rule in group["rules"]][index]
    series = rule["expr"].split("placewire_")[-1].split()[0].rstrip(")")
    name = "up" if "up{" in rule["expr"] else f"placewire_{series}".partition("{")[0]
    name = name.partition("[")[0]
    always = f"last_over_time({name}[1h])"
    rule["expr"] = always if expression == "always" else expression
    rule.pop("for", None)
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(groups))
    cases = yaml.safe_load(CASES.read_text()) | {"rule_files": ["alerts.yaml"]}
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    done = promtool("test", "rules", tmp_path / "cases.yaml")
    assert done.returncode == 1 and rule["alert"] in done.stdout + done.stderr


def test_all_that_the_dashboard_asks_is_answered_with_the_values_that_are_served(
    tmp_path: Path,
) -> None:
    nic = memory.NIC_BYTES_PER_SECOND
    expected = {
        "Step against prediction": memory.STEP_SECONDS / memory.PREDICTED_SECONDS,
        "Step time and prediction": memory.STEP_SECONDS,
        "Step time by rank": memory.STEP_SECONDS,
        "Samples a second": 8 / memory.TICK_SECONDS,
        "Loss": 2.5,
        "Memory against limit": 400,
        "Ranks that run": 2,
        "Pairs: promised and measured": memory.QUEUE_BYTES_PER_SECOND,
        "Pairs: delivered before the job": 0.9,
        "Pairs: planned": 100 / memory.TICK_SECONDS,
        "NICs: utilisation": nic / (50_000_000 / 8),
        "NICs: sent against plan": nic,
        "Agents that answer": 1,
        "Not as decided": 1,
        "Could not put back": 0,
        "Servers in force": 1,
        "Leases: time left": memory.LEASE_SECONDS,
        "Oldest drift": memory.DRIFT_SECONDS,
    }
    with run_in_memory(tmp_path) as sockets, prometheus(tmp_path, sockets) as server:
        left = {_without_variables(one.text) for one in of_dashboard()}

        def wrong() -> list[tuple[str, float, float]]:
            """A rate is right once there are samples in all of its window."""
            first = {one["title"]: one["targets"][0]["expr"] for one in panels()}
            found = {title: _value(server, first[title]) for title in expected}
            return [(title, found[title], value) for title, value in expected.items()
                    if found[title] != pytest.approx(value, rel=0.1)]  # fmt: skip

        def answered() -> bool:
            left.difference_update([one for one in left if server.query(one)])
            return not left

        _wait(answered, lambda: f"an answer to {sorted(left)}")
        _wait(lambda: not wrong(), lambda: f"the values served (panel, found, served): {wrong()}")


def _value(server: Prometheus, expression: str) -> float:
    """Of the first series by its labels; NaN where there is none now, as after a scrape that this
    machine was too busy for."""
    found = server.query(_without_variables(expression))
    if not found:
        return math.nan
    return float(min(found, key=lambda one: sorted(one["metric"].items()))["value"][1])


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[TestCluster]:
    cluster = TestCluster(f"mon{os.getpid():07}", tmp_path)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


def test_all_that_the_dashboard_asks_is_answered_of_a_run_in_a_lab(
    lab: TestCluster, tmp_path: Path
) -> None:
    found = find_lab(lab.name)
    assert found is not None
    document = lab.document()
    document["job"] |= {"steps": 100_000, "validation": {"every": 3, "batches": 1}}
    document["network"]["sharing"] = "guarantee"
    sockets = {
        "placewire-agent": {
            server: found.directory / server / "agent" / "metrics.sock" for server in SERVERS
        },
        "placewire-run": {"controller": found.state_directory / SOCKET},
    }
    with prometheus(tmp_path, sockets) as server:
        run = lab.start("apply", str(lab.plan(document)), "--yes")
        printed: list[str] = []
        output = run.stdout
        assert output is not None
        reading = threading.Thread(target=lambda: printed.extend(map(bytes.decode, output)))
        reading.start()
        try:
            _every_expression_is_answered(server, lambda: run.poll() is None, printed)
            assert not server.firing() & WRONG_WHILE_ALL_IS_WELL
            for group in server.get("rules")["groups"]:
                for rule in group["rules"]:
                    assert rule["health"] == "ok", rule
            os.kill(lab.ranks()[-1], signal.SIGKILL)
            run.wait()
        finally:
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
            run.wait()
            reading.join()
        assert "was killed by SIGKILL" in "".join(printed), "".join(printed)[-2000:]
        _wait(lambda: not server.query("placewire_run_info"), lambda: "the run's series to go")
        assert not server.query('{__name__=~"placewire_run_.+"}')
        assert len(server.query("placewire_agent_info")) == len(SERVERS)
        _wait(lambda: "PlacewireRunEndedEarly" in server.firing(), lambda: "an early end's alert")


def _every_expression_is_answered(
    server: Prometheus, runs: Callable[[], bool], printed: list[str]
) -> None:
    left = {_without_variables(one.text) for one in of_dashboard()}
    for empty in EMPTY_BY_DESIGN:
        left.remove(empty)
    until = time.monotonic() + PATIENCE_SECONDS
    while left and runs() and time.monotonic() < until:
        left = {expression for expression in left if not server.query(expression)}
        time.sleep(1)
    assert not left, (sorted(left), "".join(printed)[-2000:])
    for empty, why in EMPTY_BY_DESIGN.items():
        assert server.query(empty) == [], why


def _without_variables(expression: str) -> str:
    """As Grafana has it, with all plans and servers chosen."""
    for name, value in (("$plan", ".*"), ("$server", ".*"), ("$__rate_interval", "20s")):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def _wait(until: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not until():
        assert time.monotonic() < deadline, f"waited for {what()}"
        time.sleep(1)
