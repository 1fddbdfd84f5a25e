"""The warm-up compiles what a first search would else compile within its time limit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

# The searches of the warm-up compile none of these functions, so the test leaves them out.
PROOFS_BY_CASES = """
import time

from placewire.optimizer.bounds.cases import Cases
from placewire.optimizer.bounds.contradiction import limits_of, tightened
from placewire.optimizer.bounds.load import share_of_load
from placewire.optimizer.bounds.message_time import messages_of
from placewire.optimizer.bounds.relaxation import relax
from placewire.optimizer.engines import warm_up
from placewire.optimizer.kernels.graphs.occupied import occupied_seconds
from placewire.optimizer.kernels.graphs.places import leave_possible, starts_in_places
from placewire.optimizer.problem import Problem
from tests.optimizer.cases import cluster, graph

def compiled():
    functions = occupied_seconds, leave_possible, starts_in_places
    return [list(function.signatures) for function in functions]

warm_up.place = lambda *_: None
assert compiled() == [[], [], []]
warm_up.main(["auto"])
once = compiled()
assert [len(each) for each in once] == [1, 1, 1], once

made = graph({"A": 1.0, "B": 2.0, "C": 2.0}, [("A", ["B", "C"], 800_000)])
problem = Problem(made, cluster(3), "job")
limits = limits_of(problem, share_of_load(problem.seconds))
forced, _ = tightened(relax(problem), limits, 3.9, 12)
assert forced is not None and forced.clashes.any()
Cases(forced, messages_of(problem), 3.9, time.monotonic() + 60.0).refuted()
assert compiled() == once, compiled()
"""

SEARCH_IN_TURNS = """
from placewire.optimizer.engines import warm_up
from placewire.optimizer.kernels.annealing.anneal_turns import anneal_turns
from placewire.optimizer.kernels.graphs.heads import turn_seconds

warm_up.look_at_one_case = lambda _: None
warm_up.main(["auto"])
once = [len(function.signatures) for function in (anneal_turns, turn_seconds)]
assert once == [1, 1], once
"""


@pytest.mark.parametrize("program", [PROOFS_BY_CASES, SEARCH_IN_TURNS])
def test_the_warm_up_compiles(program):
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
