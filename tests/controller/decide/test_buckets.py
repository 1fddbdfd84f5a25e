"""A model whose batches have several shapes is profiled and placed for each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.decide.buckets import (
    PlacedBucket,
    _of_bucket,
    _require_same_training,
    _with_talks_of,
)
from placewire.controller.decide.decide import PlacementDecision, decide
from placewire.controller.decide.measured.profiles import STALENESS_PROGRAM
from placewire.controller.errors import InfeasiblePlacement, PlanError
from placewire.controller.launch.programs import Ended
from placewire.controller.plan.job import PlacedJob
from placewire.optimizer.graph.graph_file import graph_to_json
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from placewire.optimizer.placement import load_placement, save_placement
from tests.controller.decide.test_profiles import Servers
from tests.controller.plans import placement, plan, plan_document

MIB = 2**20
SHARES = {"long": 0.25, "short": 0.75}


class Bucketed(Servers):
    """Two towers with a parameter each, of two buckets. asked: the words behind the model of each
    run that measured. bytes_of: what an operator makes, by bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []
        self.bytes_of = {"long": 4 * MIB, "short": MIB}

    async def run(
        self,
        server: str,
        words: Sequence[str],
        *,
        given: bytes = b"",
        on_line: Callable[[str], None],
    ) -> Ended:
        if tuple(words) == STALENESS_PROGRAM:
            return Ended(0, b"[]", ())
        self.asked.append(list(words))
        given_words = dict(pairwise(words))
        bucket = given_words.get("--bucket", "long")
        size = self.bytes_of[bucket]
        seconds = size / MIB
        rows, tensors = [], []
        for tower in "ab":
            rows += [
                OperatorRow(
                    id=f"{tower}_weight", type="parameter", seconds={"cpu": 0.0},
                    weight_bytes=12 * MIB, signature="f4", colocation=tower,
                ),
                OperatorRow(
                    id=tower, type="any", seconds={"cpu": seconds}, signature=f"f4 {size}",
                    activation_bytes=size,
                ),
                OperatorRow(
                    id=f"{tower}_update", type="update", seconds={"cpu": 0.0}, signature="f4",
                    colocation=tower,
                ),
            ]  # fmt: skip
            tensors += [
                TensorRow(f"{tower}_weight", (tower,), MIB),
                TensorRow(tower, (f"{tower}_update",), 64),
            ]
        notes: dict[str, Any] = {"buckets": ["long", "short"], "bucket": bucket, "loss": "a"}
        if "--steps" in given_words:
            notes["bucket_shares"] = SHARES
        graph = build_graph(rows, tensors, notes=notes)
        answer = {"graph": graph_to_json(graph), "profiles": {}}
        return Ended(0, json.dumps(answer).encode(), ())


async def decided(
    servers: Bucketed, cache: Path, memory: str = "1GiB", **job: Any
) -> PlacementDecision:
    document = plan_document(2)
    for server in document["cluster"]["servers"]:
        server["devices"][0]["memory"] = memory
    document["job"] |= {"steps": 100, **job}
    document["solve"] = {"time_limit": "1s"}
    launcher: Any = servers
    said: list[str] = []
    return await decide(plan(document), Path("plan.yaml"), launcher, cache, said.append)


async def test_each_bucket_is_profiled_and_placed_beside_the_first(tmp_path: Path) -> None:
    servers = Bucketed()
    made = await decided(servers, tmp_path)
    first, asked = servers.asked
    assert "--bucket" not in first and "--steps" not in first
    k = asked.index("--bucket")
    assert asked[k : k + 4] == ["--bucket", "short", "--steps", "100"]
    assert [(one.name, one.share) for one in made.buckets] == [("long", 0.25), ("short", 0.75)]
    long, short = (one.placement for one in made.buckets)
    assert long is made.placement and len(long.devices_used) == 2
    for name in ("a_weight", "b_weight", "a_update", "b_update"):
        assert short.operators[name] == long.operators[name]
    assert short.cluster == long.cluster
    assert short.rates_bits_per_second == long.rates_bits_per_second
    assert made.predicted_step_seconds == pytest.approx(
        0.25 * long.step_seconds + 0.75 * short.step_seconds
    )
    assert made.longest_step_seconds == long.step_seconds > short.step_seconds
    assert made.other_bucket_files == {"short": made.buckets[1].placement_file}
    again = await decided(servers, tmp_path)
    assert len(servers.asked) == 2, "the profiles are kept"
    assert again.buckets[1].placement_file == made.buckets[1].placement_file


async def test_a_bucket_that_does_not_fit_beside_the_first_is_named(tmp_path: Path) -> None:
    servers = Bucketed()
    servers.bytes_of["short"] = 64 * MIB
    with pytest.raises(InfeasiblePlacement, match="bucket 'short' has no placement with the") as no:
        await decided(servers, tmp_path, memory="32MiB")
    assert "let example_inputs be of the largest bucket" in str(no.value)


async def test_a_trace_of_several_shapes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"job\.trace: the batches of .* have several shapes"):
        await decided(Bucketed(), tmp_path, trace={"folder": "/tmp/traces", "steps": 1})


def test_a_cut_that_nobody_asked_for_must_train_every_bucket_as_it_is(tmp_path: Path) -> None:
    graph, file = tmp_path / "graph.json", Path("plan.yaml")
    document = plan_document(2)
    document["job"] |= {"accumulate": "auto", "shards": "auto"}
    made = plan(document)
    assert isinstance(made.job, PlacedJob)
    graph.write_text(json.dumps({"notes": {"whole_batch": "batch norm takes a mean"}}))
    whole = made.job.model_copy(update={"accumulate": 1, "shards": 1})
    _require_same_training("short", graph, made, whole, file)
    halves = whole.model_copy(update={"accumulate": 2})
    with pytest.raises(PlanError, match=r"would train bucket 'short' otherwise: batch norm") as no:
        _require_same_training("short", graph, made, halves, file)
    assert no.value.mistakes[0][0] == "job.accumulate"
    asked = made.model_copy(update={"job": halves})
    _require_same_training("short", graph, asked, halves, file)
    error = PlanError("plan.yaml", [("job.model", "it cannot be cut")])
    (said,) = _of_bucket("short", made, halves, file, error).mistakes
    assert said[1].startswith(
        "bucket 'short': it cannot be cut; the step is cut as suits the first"
    )
    assert "job.accumulate: 1 leaves it whole" in said[1]
    (said,) = _of_bucket("short", asked, halves, file, error).mistakes
    assert said == ("job.model", "bucket 'short': it cannot be cut")


def test_the_network_has_a_place_for_what_only_another_bucket_sends(tmp_path: Path) -> None:
    first = placement(plan(), ()).model_copy(update={"sharing": "job"})
    fewer = first.model_copy(update={"messages": first.messages[:1]})
    missing = first.talks - fewer.talks
    assert missing
    file = tmp_path / "first.json"
    save_placement(fewer, file)
    own = PlacedBucket("long", 0.0, file, file, load_placement(file))
    other = PlacedBucket("short", 1.0, file, file, first)
    made = _with_talks_of(own, [other], tmp_path)
    assert made.placement.talks == first.talks
    assert made.placement.messages == fewer.messages
    assert load_placement(made.placement_file) == made.placement
    assert load_placement(made.placement_file).talks == first.talks
    assert _with_talks_of(other, [own], tmp_path) is other
