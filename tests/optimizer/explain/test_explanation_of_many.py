"""The explanation of a placement on many servers stays short."""

from __future__ import annotations

import re

from placewire.optimizer.explain.explanation import explain
from placewire.optimizer.explain.explanation_lines import explanation_lines
from tests.optimizer.cases import cluster
from tests.optimizer.explain.test_parallelism import layered
from tests.placements import placement_of

SERVERS = 32


def test_what_all_pairs_have_is_told_once_and_next_to_nothing_not_alone() -> None:
    work = layered(SERVERS, 4)
    homes = {
        name: f"s{(k if micro_batch < 0 else micro_batch) % SERVERS + 1}/0"
        for k, (name, micro_batch) in enumerate(
            zip(work.ids, work.micro_batch.tolist(), strict=True)
        )
    }
    placement = placement_of(work, cluster(SERVERS), homes)
    lines = explanation_lines(placement, explain(work, placement))
    assert len(lines) < 60 and max(map(len, lines)) <= 100
    at = next(k for k, line in enumerate(lines) if line.startswith("who sends to whom: "))
    pairs = [line for line in lines[at:] if re.match(r"  s\d+ -> s\d+: ", line)]
    assert len(pairs) == 12 and all("the step" in line for line in pairs), "each in one line"
    told = [line for line in lines if "shorter stretch" in line]
    assert told and not any(line.startswith("   0.0%") for line in told[:-1])
