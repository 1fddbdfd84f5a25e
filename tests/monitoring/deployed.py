"""What `deploy` has for Prometheus and Grafana, read as tests want it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from placewire.agent.metrics.metrics import METRICS as OF_AGENTS
from placewire.controller.metrics.run_metrics import METRICS as OF_RUNS
from placewire.exposition import Metric
from tests.paths import ROOT

ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
CONFIGURATION = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"

METRICS: dict[str, Metric] = {metric.name: metric for metric in (*OF_AGENTS, *OF_RUNS)}


class Expression(NamedTuple):
    """where: a panel's title or an alert's name."""

    where: str
    text: str


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def panels() -> list[Any]:
    """Without rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def of_dashboard() -> Iterator[Expression]:
    for panel in panels():
        for target in panel["targets"]:
            yield Expression(panel["title"], target["expr"])


def alerts() -> list[Any]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def of_alerts() -> Iterator[Expression]:
    for rule in alerts():
        yield Expression(rule["alert"], rule["expr"])


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bplacewire_[a-z0-9_]+", expression))
