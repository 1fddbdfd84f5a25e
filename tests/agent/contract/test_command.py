"""Messages name the agent's command so that whoever pastes it finds it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from placewire.agent.contract.command import AGENT
from tests.paths import ROOT

PLAYBOOK, ALERTS = "playbooks/roles/lease/tasks/main.yaml", "deploy/prometheus/alerts.yaml"


def test_the_unit_starts_it_where_messages_say_that_it_is() -> None:
    unit = (ROOT / "deploy/placewire-agent.service").read_text()
    assert f"ExecStart={AGENT} run" in unit


def test_no_message_names_it_bare() -> None:
    for path in sorted((ROOT / "agent").rglob("*.py")):
        for text in messages_of(path):
            assert "agent restore" not in text and "agent status" not in text, (path, text)
    for name in (PLAYBOOK, ALERTS):
        text = (ROOT / name).read_text().replace(AGENT, "")
        assert "agent restore" not in text, name


def messages_of(path: Path) -> Iterator[str]:
    """The strings of a module but for its docstrings."""
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value
