"""The pages of docs/reference, put together from what commands and models describe."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import placewire.agent.main
import placewire.agent.metrics.metrics
import placewire.controller.cli
import placewire.controller.metrics.run_metrics
import placewire.optimizer.cli
from placewire.agent.contract.config import AgentConfig
from placewire.controller.errors import EXIT_CODES
from placewire.controller.plan.plan import Plan
from placewire.exposition import Metric
from placewire.optimizer.commands.arguments import CODES
from reference.answers import ANSWERS, answer_lines
from reference.commands import command_lines
from reference.models import Entry, Section, sections
from reference.text import item, paragraph

_MADE = "Made from the code by `make reference`; change it there."
# By the path of a section: where the effects of its keys are explained.
_EXPLAINED = {
    "cluster": "[plan.md](../plan.md#cluster)",
    "cluster.servers[].devices[]": "[model.md](../model.md#profiles)",
    "job": "[plan.md](../plan.md#job)",
    "job.optimizer.schedule": "[model.md](../model.md#learning-rates)",
    "job.state": "[job.md](../job.md#pretrained-weights)",
    "job.checkpoint": "[job.md](../job.md#checkpoints)",
    "job.validation": "[job.md](../job.md#validation)",
    "job.trace": "[job.md](../job.md#traces)",
    "launch": "[cluster.md](../cluster.md#starting-ranks-over-ssh)",
    "solve": "[engine.md](../engine.md)",
    "network": "[plan.md](../plan.md#network)",
}


def pages() -> Mapping[str, str]:
    """The Markdown of each page, by file name."""
    return {
        "plan-yaml.md": _plan_page(),
        "agent-json.md": _agent_page(),
        "controller.md": _command_page("controller", placewire.controller.cli.parser()),
        "optimizer.md": _command_page(
            "optimizer", placewire.optimizer.cli.parser(with_arguments=True)
        ),
        "agent.md": _command_page("agent", placewire.agent.main.parser()),
        "exit-codes.md": _codes_page(),
        "json.md": _answers_page(),
        "metrics.md": _metrics_page(),
    }


def _plan_page() -> str:
    lines = [
        "# plan.yaml, key by key", "", _MADE, "",
        paragraph(
            "[plan.md](../plan.md) says what the file is for, how quantities are written, and "
            "which keys belong together. For each key, this page says which values it accepts and "
            "what its default is. `[]` stands for each entry of a list."
        ), "",
    ]  # fmt: skip
    told: set[str] = set()
    for section in sections(Plan):
        text = _section(section)
        if text not in told:  # kinds of jobs have sections in common
            lines += [text, ""]
        told.add(text)
    return _joined(lines)


def _section(section: Section) -> str:
    kind = f", kind: {section.kind}" if section.path == "job" else ""
    lines = [f"## {section.path or 'The file'}{kind}", ""]
    explained = _EXPLAINED.get(section.path)
    about = " ".join([section.about, f"Explained in {explained}." if explained else ""])
    if about.strip():
        lines += [paragraph(about), ""]
    return "\n".join([*lines, *map(_item, section.entries)])


def _item(entry: Entry) -> str:
    return item(f"`{entry.key}`: {entry.accepted}; {entry.default}", entry.meaning)


def _agent_page() -> str:
    (section,) = sections(AgentConfig)
    return _joined(
        [
            "# agent.json, key by key", "", _MADE, "",
            paragraph(
                "The configuration of one server's agent is `/etc/placewire/agent.json` unless "
                "`--config` names another file: JSON or YAML, unknown keys refused. "
                f"{section.about} [cluster.md](../cluster.md) has an example."
            ), "",
            *map(_item, section.entries),
        ]
    )  # fmt: skip


def _command_page(name: str, parser: argparse.ArgumentParser) -> str:
    return _joined(
        [
            f"# The command {name}", "", _MADE, "", paragraph(parser.description or ""), "",
            "[exit-codes.md](exit-codes.md) lists the exit codes.", "",
            *command_lines(parser),
        ]
    )  # fmt: skip


def _codes_page() -> str:
    lines = ["# Exit codes", "", _MADE, ""]
    for name, codes in (
        ("controller", EXIT_CODES),
        ("optimizer", CODES),
        ("agent", placewire.agent.main.EXIT_CODES),
    ):
        lines += [f"## {name}", "", "| code | meaning |", "|---|---|"]
        lines += [f"| {code} | {words} |" for code, words in codes.items()]
        lines.append("")
    return _joined(lines)


def _answers_page() -> str:
    return _joined(
        [
            "# What `--json` prints, key by key", "", _MADE, "",
            paragraph("[json.md](../json.md) says what holds for all of it."), "",
            *(line for program in ANSWERS for line in answer_lines(program)),
        ]
    )  # fmt: skip


def _metrics_page() -> str:
    lines = [
        "# Metrics", "", _MADE, "",
        paragraph(
            "[Watch a cluster](../how-to/watch.md) says who serves them, how Prometheus gets them, "
            "and what they are good for. Units are base units; rates are bytes a second. A metric "
            "without a value is absent."
        ), "",
    ]  # fmt: skip
    for title, metrics in (
        ("Of each server's agent", placewire.agent.metrics.metrics.METRICS),
        ("Of a run, by `controller apply`", placewire.controller.metrics.run_metrics.METRICS),
    ):
        lines += [f"## {title}", "", *map(_metric, metrics), ""]
    return _joined(lines)


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return item(f"`{metric.name}`: a {metric.kind}; {labels}", metric.meaning)


def _joined(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"
