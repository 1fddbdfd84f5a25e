"""Prints, as JSON, which kernels are compiled, or loaded, while the clock of a comparison runs.

    python -m tests.optimizer.published.compiled_in_time ENGINE MODEL
    python -m tests.optimizer.published.compiled_in_time REDUCTION

A process compiles a kernel once, so that each question takes a process of its own.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from numba.core.registry import CPUDispatcher

from placewire.optimizer.engines.place import place
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.problem import Problem
from placewire.optimizer.published.comparison import reduction_report, worker
from placewire.optimizer.published.comparison.cases import Method
from placewire.optimizer.reductions.chain import reduce_by_name
from tests.optimizer.cases import cluster, layered


def _ready() -> set[str]:
    functions = [one for one in gc.get_objects() if isinstance(one, CPUDispatcher)]
    return {f"{one.py_func.__name__}{types}" for one in functions for types in one.signatures}


def main(asked):
    found: list[str] = []

    def watched(timed):
        def call(*arguments):
            before = _ready()
            try:
                return timed(*arguments)
            finally:
                found.extend(sorted(_ready() - before))

        return call

    graph, two = layered(3, 4, weight=8000), cluster(2, (8e7, 8e7), latency=1e-5)
    if len(asked) == 1:
        with patch.object(reduction_report, "reduce_by_name", watched(reduce_by_name)):
            reduction_report.reduction_report(Problem(graph, two), asked[0])
    else:
        engine, model = asked
        method = Method(engine, model=model, time_limit_seconds=20.0, moves=100)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "graph.json.gz"
            save_graph(graph, file)
            case = {**vars(method), "graph": str(file), "cluster": two.model_dump(mode="json")}
            with patch.object(worker, "place", watched(place)):
                answer = worker._solved({**case, "placement": f"{folder}/placement.json.gz"})
        assert answer["outcome"] == "placed", answer
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
