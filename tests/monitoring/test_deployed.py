"""The dashboard and the alerts ask for what agents and controller serve. `make test-monitoring` has
a real Prometheus load them (with_prometheus.py)."""

from __future__ import annotations

import re
from itertools import combinations

import pytest
import yaml

from tests.monitoring.deployed import (
    CONFIGURATION,
    METRICS,
    Expression,
    alerts,
    dashboard,
    names_in,
    of_alerts,
    of_dashboard,
    panels,
)
from tests.paths import ROOT

GUIDE = (ROOT / "docs" / "how-to" / "watch.md").read_text()
EXPRESSIONS = [*of_dashboard(), *of_alerts()]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda one: f"{one.where}: {one.text[:40]}")
def test_every_metric_of_an_expression_is_one_that_is_served(expression: Expression) -> None:
    names = names_in(expression.text)
    assert names <= METRICS.keys()
    assert names or "up{" in expression.text


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda one: f"{one.where}: {one.text[:40]}")
def test_every_label_of_a_selector_is_one_of_its_metric(expression: Expression) -> None:
    for name, selector in re.findall(r"\b(placewire_[a-z0-9_]+)\{([^}]*)\}", expression.text):
        labels = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selector))
        assert labels <= set(METRICS[name].labels), name


def test_legends_name_labels_that_their_series_have() -> None:
    for panel in panels():
        for target in panel["targets"]:
            labels = {label for name in names_in(target["expr"]) for label in METRICS[name].labels}
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert named <= labels, (panel["title"], target["legendFormat"])


def test_every_metric_of_a_run_and_most_of_an_agent_s_are_on_the_dashboard() -> None:
    """Those that are not say the same in other units, or belong to a closer look by hand."""
    shown = {name for one in of_dashboard() for name in names_in(one.text)}
    assert METRICS.keys() - shown == {
        "placewire_run_info", "placewire_run_start_timestamp_seconds",
        "placewire_run_last_step_timestamp_seconds",
        "placewire_queue_transmit_packets_total", "placewire_queue_limit_bytes_per_second",
    }  # fmt: skip


def test_panels_overlap_nowhere_and_have_ids_of_their_own() -> None:
    every = dashboard()["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    places = [panel["gridPos"] for panel in every]
    assert all(one["x"] + one["w"] <= 24 for one in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_the_data_source_is_the_user_s_choice() -> None:
    found = dashboard()
    variables = {one["name"]: one["type"] for one in found["templating"]["list"]}
    assert variables == {"datasource": "datasource", "plan": "query", "server": "query"}
    for panel in panels():
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_alert_says_what_and_what_to_do_and_the_guide_has_it() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert f"`{rule['alert']}`" in GUIDE, rule["alert"]


def test_the_guide_s_jobs_are_those_of_the_example() -> None:
    """Alerts and the dashboard ask for job `placewire-agent`."""
    jobs = {job["job_name"] for job in yaml.safe_load(CONFIGURATION.read_text())["scrape_configs"]}
    assert jobs == {"placewire-agent", "placewire-run"}
    asked = {job for one in EXPRESSIONS for job in re.findall(r'job="([^"]+)"', one.text)}
    assert asked <= jobs
