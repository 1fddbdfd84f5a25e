"""Explain: is the critical path the one that can be worked out, and what would help computed?"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewire.optimizer.cli import main
from placewire.optimizer.engines.place import place
from placewire.optimizer.explain.critical_path import critical_path
from placewire.optimizer.explain.explanation import Explanation, explain
from placewire.optimizer.explain.what_if import PlacementArrays, bound_with_another_device, changes
from placewire.optimizer.graph.graph_file import save_graph
from placewire.optimizer.graph.operator_graph import OperatorGraph
from placewire.optimizer.names import Model, SharingName
from placewire.optimizer.placement import Placement, save_placement
from placewire.optimizer.problem import Problem, SolveSettings
from placewire.optimizer.simulation.simulate import simulate
from tests.drawn_examples import examples
from tests.optimizer.cases import cluster, graph, layered

# Rates of 8 Mbit/s: a byte is a microsecond.
MS = 1e-3


def two_devices(**more: object) -> tuple[Problem, np.ndarray, np.ndarray]:
    """A (1 ms) sends 100 kB and 200 kB to B and C (1 ms each) on the other server, both at once."""
    work = graph(
        {"A": MS, "B": MS, "C": MS, "D": MS},
        [("A", ["B"], 100_000), ("A", ["C"], 200_000), ("A", ["D"], 4)],
    )
    problem = Problem(work, cluster(2, **more))  # type: ignore[arg-type]
    return problem, np.array([0, 1, 1, 0]), np.array([[[0.0], [8e6]], [[8e6], [0.0]]])


def test_the_path_is_contiguous_and_names_what_was_waited_for() -> None:
    problem, device, rates = two_devices(latency=0.01)
    timeline = simulate(problem, device, rates=rates)
    path = critical_path(problem, device, timeline)
    told = [(s.kind, problem.graph.ids[s.operator], round(s.seconds, 6)) for s in path]
    assert told == [
        ("compute", "A", 0.001),
        ("wait", "A", 0.1),  # behind the 100 kB to the same server
        ("transfer", "A", 0.21),
        ("compute", "C", 0.001),
    ]
    assert path[0].start_seconds == 0
    assert path[-1].finish_seconds == timeline.step_seconds
    for before, after in itertools.pairwise(path):
        assert after.start_seconds == before.finish_seconds


def test_changes_are_simulated() -> None:
    problem, device, rates = two_devices(latency=0.01)
    decision = PlacementArrays(device, [[0, 3], [1, 2]], rates)
    found = {change.what: change.step_seconds for change in changes(problem, decision, [1, 0])}
    assert found["every NIC and link twice as fast"] == pytest.approx(0.01 + 0.15 + 2 * MS)
    assert found["no setup latency"] == pytest.approx(0.3 + 2 * MS)
    assert found["s2/0 twice as fast"] == pytest.approx(0.31 + 1.5 * MS)
    assert found["s1/0 twice as fast"] == pytest.approx(0.31 + 1.5 * MS)


def test_a_device_more_is_a_bound() -> None:
    work = graph(dict.fromkeys("ABCDEF", 1.0), [])
    assert bound_with_another_device(Problem(work, cluster(2))).step_seconds == pytest.approx(2.0)
    within = bound_with_another_device(Problem(work, cluster(1, devices=2)))
    assert within.step_seconds == pytest.approx(2.0)
    assert within.what == "one more device in s1"


def explained(
    work: OperatorGraph, sharing: SharingName, model: Model
) -> tuple[Placement, Explanation]:
    problem = Problem(work, cluster(3, (8e7, 8e7), latency=1e-4), sharing, model)
    placement = place(problem, "auto", SolveSettings(gap=0.0, moves=300))
    return placement, explain(work, placement)


@pytest.mark.parametrize(
    ("sharing", "model"),
    [("strict", "contended"), ("job", "contended"), ("even", "thesis"), ("unshaped", "contended")],
)
def test_shares_sum_to_the_step_under_every_sharing(sharing: SharingName, model: Model) -> None:
    placement, told = explained(layered(3, 2), sharing, model)
    assert len(placement.devices_used) > 1
    whole = sum(told.seconds_of(kind) for kind in ("compute", "transfer", "wait"))
    assert whole == pytest.approx(placement.step_seconds)
    assert told.step_seconds == pytest.approx(placement.step_seconds)
    sent = sum(message.bytes for message in placement.messages)
    assert sum(pair.bytes for pair in told.pairs) == sent
    waited = told.seconds_of("transfer") + told.seconds_of("wait")
    assert sum(pair.critical_seconds for pair in told.pairs) == pytest.approx(waited)
    assert all((pair.part_of_rate is None) == (sharing != "strict") for pair in told.pairs)
    assert told.limit is not None
    assert told.limit.step_seconds <= told.step_seconds


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10**6))
def test_every_path_spans_its_step(seed: int) -> None:
    generator = np.random.default_rng(seed)
    names = [f"o{k}" for k in range(12)]
    tensors = [
        (names[a], [names[b]], int(generator.integers(0, 3) * 5000))
        for b in range(1, 12)
        for a in generator.choice(b, size=min(b, 2), replace=False).tolist()
    ]
    times = generator.uniform(0, 0.01, 12).tolist()
    work = graph(dict(zip(names, times, strict=True)), tensors)
    problem = Problem(work, cluster(3, latency=1e-3), "even")
    device = generator.integers(0, 3, 12)
    timeline = simulate(problem, device)
    path = critical_path(problem, device, timeline)
    assert path[0].start_seconds == pytest.approx(0, abs=1e-12)
    assert sum(segment.seconds for segment in path) == pytest.approx(timeline.step_seconds)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    work = layered(3, 2)
    placement, _ = explained(work, "strict", "contended")
    save_graph(work, tmp_path / "g.json")
    save_placement(placement, tmp_path / "p.json")
    return str(tmp_path / "g.json"), str(tmp_path / "p.json")


def test_the_words_fit_and_name_path_pairs_and_advice(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    work, placement = files
    assert main(["explain", placement, "--graph", work]) == 0
    said = capsys.readouterr().out
    for part in ("critical path", "who sends to whom", "twice as fast", "one more server like s3"):
        assert part in said
    assert said.splitlines()[-2].startswith("helps most: ")
    assert said.splitlines()[-1].startswith("a better placement: ")
    assert all(len(line) <= 100 for line in said.splitlines())
    assert main(["explain", placement, "--graph", work, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step_seconds"] > 0 and document["path"] and document["changes"]
    assert main(["explain", placement]) == 0
    assert "give --graph" in capsys.readouterr().out


def test_a_placement_that_does_not_hold_is_not_explained(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    work, placement = files
    document = json.loads(Path(placement).read_text())
    Path(placement).write_text(json.dumps({**document, "step_seconds": 1e-9}))
    assert main(["explain", placement, "--graph", work]) == 3
    assert "does not hold: step_seconds" in capsys.readouterr().err
    assert main(["explain", placement, "--json"]) == 3
    assert "give --graph" in capsys.readouterr().err


def test_one_device_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = graph({"A": 1.0, "B": 1.0}, [("A", ["B"], 10**7)])
    save_graph(work, tmp_path / "g.json")
    placement = place(Problem(work, cluster(2)), "auto", SolveSettings(moves=50))
    save_placement(placement, tmp_path / "p.json")
    assert main(["explain", str(tmp_path / "p.json"), "--graph", str(tmp_path / "g.json")]) == 0
    said = capsys.readouterr().out
    assert "do not distribute this: one device takes 2.000 s" in said
    assert "who sends" not in said and "NIC" not in said
    assert "helps most: s1/0 twice as fast, 50.0% shorter" in said
    assert "a better placement: no gain, this one is within 0.0% of the bound" in said
