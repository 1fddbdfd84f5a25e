"""Every table of figures in docs/benchmarks says of which commit it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.paths import ROOT

REPORTS = sorted((ROOT / "docs" / "benchmarks").glob("*.md"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.stem)
def test_each_table_names_its_commit_and_the_page_its_command(report: Path) -> None:
    head, *sections = re.split(r"^## ", report.read_text(), flags=re.M)
    assert re.search(r"`make [a-z-]+`", head), "which command makes it?"
    if not re.search(r"at commit [0-9a-f]{7,}", head):
        assert sections
    for section in sections:
        assert re.search(r"at commit [0-9a-f]{7,}", head + section), section.splitlines()[0]
