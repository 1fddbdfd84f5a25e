"""A job whose micro-batches or shards are to be decided is profiled in each number of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.cli import main
from placewire.controller.compile.ranks import rank_specs
from placewire.controller.decide.decide import PlacementDecision, decide
from placewire.controller.decide.measured.profiles import STALENESS_PROGRAM
from placewire.controller.decide.variants import Variant, variants_of
from placewire.controller.errors import Occupied, PlacewireError, PlanError
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.launch.programs import Ended
from placewire.controller.plan.job import PlacedJob
from placewire.controller.plan.plan import Plan
from placewire.optimizer.graph.graph_file import graph_to_json, load_graph
from placewire.optimizer.graph.operator_graph import OperatorRow, TensorRow, build_graph
from tests.controller.decide.test_profiles import Servers
from tests.controller.plans import plan, plan_document

Cut = tuple[int, int]


class Cutting(Servers):
    """Servers whose step has an operator for each micro-batch, and for each shard of a step that
    has micro-batches. asked: the numbers of each run; quickly: of those with few samples.
    bytes_of: what a step takes on one device, by what is recomputed; recomputed: what each run was
    asked, behind its number of micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Cut] = []
        self.quickly: list[Cut] = []
        self.failing_cuts: dict[Cut, Ended] = {}
        self.whole_batch: str | None = None
        self.validation = False
        self.bytes_of: dict[str, int] = {}
        self.recomputed: list[tuple[int, str]] = []
        self.failing_recomputed: dict[tuple[int, str], Ended] = {}

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
        count, shards = (
            int(words[list(words).index(key) + 1]) for key in ("--accumulate", "--shards")
        )
        self.asked.append((count, shards))
        recompute = words[list(words).index("--recompute") + 1]
        self.recomputed.append((count, recompute))
        if (count, recompute) in self.failing_recomputed:
            return self.failing_recomputed[count, recompute]
        if "--samples" in words:
            self.quickly.append((count, shards))
        if (count, shards) in self.failing_cuts:
            return self.failing_cuts[count, shards]
        return Ended(0, self.answer(count, shards, recompute), ())

    def answer(self, count: int, shards: int, recompute: str = "none") -> bytes:
        parts = [f"p{k}" for k in range(count + (shards if count > 1 else 0))]
        # No two measurements are alike.
        rows = [OperatorRow("x", "any", {"cpu": 0.001 + 1e-6 * len(self.asked)})]
        rows += [OperatorRow(name, "any", {"cpu": 0.4 / len(parts)}) for name in parts]
        again = ["half", "all"].index(recompute) + 1 if recompute != "none" else 0
        rows += [OperatorRow(f"x_again{k}", "any", {"cpu": 0.1}) for k in range(again)]
        notes = {
            "torch": "2.13.0", "processor": "one", "loss": "p0", "sources": {}, "model": "m",
            "accumulate": count, "shards": shards, "whole_batch": self.whole_batch,
            "validation": self.validation, "recompute": recompute,
            "one_device_bytes": self.bytes_of.get(recompute, 0),
        }  # fmt: skip
        graph = build_graph(rows, [TensorRow("x", tuple(parts), 8)], notes=notes)
        profile = {"key": {"device_type": "cpu", "threads": 1}}
        name = f"profile-{count:08x}{shards:08x}.json"
        return json.dumps({"graph": graph_to_json(graph), "profiles": {name: profile}}).encode()


class Asking:
    def __init__(self, cache: Path, servers: int = 2, **job: Any) -> None:
        document = plan_document(servers)
        document["job"] |= {"batch": 4, "accumulate": "auto", "recompute": "auto", **job}
        self.plan: Plan = plan(document)
        self.cache, self.said, self.servers = cache, list[str](), Cutting()

    async def __call__(self) -> list[Variant]:
        assert isinstance(self.plan.job, PlacedJob)
        return await variants_of(
            self.plan,
            self.plan.job,
            Path("plan.yaml"),
            self.servers,  # type: ignore[arg-type]
            self.cache,
            self.said.append,
        )


def cuts_of(variants: Sequence[Variant]) -> list[Any]:
    return [
        (one.job.accumulate, one.job.shards) for one in variants if isinstance(one.job, PlacedJob)
    ]


async def test_each_number_is_profiled_once_and_told(tmp_path: Path) -> None:
    asking = Asking(tmp_path, shards="auto")
    found = await asking()
    every = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2)]
    assert asking.servers.asked == asking.servers.quickly == every == cuts_of(found)
    assert [line for line in asking.said if line.startswith("variant")] == [
        "variant: 1 micro-batch", "variant: 2 micro-batches", "variant: 2 micro-batches, 2 shards",
        "variant: 4 micro-batches", "variant: 4 micro-batches, 2 shards",
    ]  # fmt: skip
    for one, cut in zip(found, every, strict=True):
        assert one.graph_file == one.scored_file
        notes = load_graph(one.graph_file).notes
        assert (notes["accumulate"], notes["shards"]) == cut
    asking.servers.asked.clear()
    assert await asking() == found and asking.servers.asked == []


async def test_a_better_profile_that_is_known_serves_a_comparison(tmp_path: Path) -> None:
    one = Asking(tmp_path, accumulate=2)
    (known,) = await one()
    assert one.servers.quickly == []
    every = Asking(tmp_path)
    found = await every()
    assert every.servers.asked == every.servers.quickly == [(1, 1), (4, 1)]
    assert found[1].graph_file == known.graph_file
    # What was compared stays so, whichever is measured better later.
    better = Asking(tmp_path, accumulate=4)
    (thorough,) = await better()
    assert better.servers.asked == [(4, 1)]
    assert await every() == found and thorough.graph_file != found[2].graph_file


async def test_steps_that_are_the_same_are_one_variant(tmp_path: Path) -> None:
    """As where all weights are too small for shards."""
    asking = Asking(tmp_path, shards="auto")
    same = asking.servers.answer

    def answer(count: int, shards: int, recompute: str = "none") -> bytes:
        return same(count, 1)

    asking.servers.answer = answer  # type: ignore[method-assign]
    found = await asking()
    assert cuts_of(found) == [(1, 1), (2, 1), (4, 1)]
    assert len(asking.servers.asked) == 5
    assert len({load_graph(one.graph_file).structure_hash for one in found}) == 3


async def test_a_number_is_one_variant_and_says_nothing_of_variants(tmp_path: Path) -> None:
    asking = Asking(tmp_path, accumulate=2)
    asking.servers.whole_batch = "norm normalises over the batch"
    assert cuts_of(await asking()) == [(2, 1)], "somebody asked for that"
    assert asking.servers.quickly == [], "nothing is to be compared"
    assert not [line for line in asking.said if "variant" in line]
    shards_only = Asking(tmp_path / "shards", accumulate=2, shards="auto")
    shards_only.cache.mkdir()
    shards_only.servers.whole_batch = "norm normalises over the batch"
    assert cuts_of(await shards_only()) == [(2, 1), (2, 2)], "shards change nothing"


FAILED = Ended(1, b"", ("out of", "memory"))
REFUSED = Ended(3, b"", ("error: input 1 is of shape (3,)",))


@pytest.mark.parametrize(("cut", "ended"), [((1, 1), FAILED), ((2, 1), FAILED), ((4, 1), REFUSED)])
async def test_what_cannot_be_profiled_is_told_and_left_out(
    tmp_path: Path, cut: Cut, ended: Ended
) -> None:
    asking = Asking(tmp_path)
    asking.servers.failing_cuts[cut] = ended
    assert cuts_of(await asking()) == [one for one in [(1, 1), (2, 1), (4, 1)] if one != cut]
    (told,) = [line for line in asking.said if line.startswith("left out: ")]
    assert ended.tail[-1] in told


async def test_a_number_is_not_left_out_because_others_measure_just_now(tmp_path: Path) -> None:
    asking = Asking(tmp_path)
    first = await asking()
    asking.plan = Asking(tmp_path, batch=8).plan
    asking.servers.occupied = {"s1", "s2"}
    with pytest.raises(Occupied, match="cannot be measured in isolation"):
        await asking()
    asking.plan = Asking(tmp_path).plan
    assert cuts_of(await asking()) == cuts_of(first), "what is known needs no measurement"


async def test_nothing_that_can_be_profiled_is_an_error(tmp_path: Path) -> None:
    asking = Asking(tmp_path)
    asking.servers.failing_cuts = dict.fromkeys([(1, 1), (2, 1), (4, 1)], FAILED)
    with pytest.raises(PlacewireError, match="out of"):
        await asking()
    assert len(asking.servers.asked) == 3
    one = Asking(tmp_path, accumulate=2)
    one.servers.failing_cuts[2, 1] = FAILED
    with pytest.raises(PlacewireError, match="out of"):
        await one()
    assert not [line for line in one.said if "left out" in line], "the error says it"


async def test_a_model_that_cannot_be_captured_whole_is_the_plans_mistake_at_once(
    tmp_path: Path,
) -> None:
    asking = Asking(tmp_path)
    asking.servers.failing_cuts[1, 1] = REFUSED
    with pytest.raises(PlanError, match=r"job\.model"):
        await asking()
    assert asking.servers.asked == [(1, 1)]


async def test_a_model_without_validation_batches_is_not_validated(tmp_path: Path) -> None:
    asking = Asking(tmp_path, accumulate=1, validation={"batches": 2})
    with pytest.raises(PlanError, match=r"job\.validation: .* has no validation batches: give its"):
        await asking()
    again = Asking(tmp_path, accumulate=2, validation={"batches": 2})
    again.servers.validation = True
    assert cuts_of(await again()) == [(2, 1)]


async def test_a_step_with_a_batch_norm_stays_whole(tmp_path: Path) -> None:
    asking = Asking(tmp_path)
    asking.servers.whole_batch = "norm normalises over the batch"
    assert cuts_of(await asking()) == [(1, 1)]
    assert asking.servers.asked == [(1, 1)], "nothing else is measured"
    (told,) = [line for line in asking.said if "norm normalises over the batch" in line]
    assert "Give job.accumulate a number" in told


async def test_a_step_with_a_batch_norm_that_cannot_be_profiled_whole_is_not_cut(
    tmp_path: Path,
) -> None:
    asking = Asking(tmp_path)
    asking.servers.whole_batch = "norm normalises over the batch"
    asking.servers.failing_cuts[1, 1] = FAILED
    with pytest.raises(PlacewireError, match="out of"):
        await asking()
    assert asking.servers.asked == [(1, 1), (2, 1)]


def test_how_many_micro_batches_is_decided_where_the_plan_says_nothing() -> None:
    document = plan_document(2)
    del document["job"]["accumulate"], document["job"]["recompute"]
    job = plan(document).job
    assert isinstance(job, PlacedJob) and job.accumulate == job.recompute == "auto"


async def decided(of: Plan, servers: Cutting, cache: Path, said: list[str]) -> PlacementDecision:
    return await decide(of, Path("plan.yaml"), servers, cache, said.append)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_the_shortest_variant_is_decided_and_is_what_ranks_run(tmp_path: Path) -> None:
    """Two servers halve a step of two micro-batches, and four parts are no better than two."""
    document = plan_document(2)
    document["job"] |= {"batch": 2, "accumulate": "auto"}
    document["solve"] = {"engine": "heft", "time_limit": "60s"}
    of, servers, said = plan(document), Cutting(), list[str]()
    decision = await decided(of, servers, tmp_path, said)
    assert cuts_of([decision.variant]) == [(2, 1)]
    assert servers.asked == [(1, 1), (2, 1), (2, 1)] and servers.quickly == [(1, 1), (2, 1)]
    assert decision.graph_file == decision.scored_file
    graph, placement = load_graph(decision.graph_file), decision.placement
    assert placement.structure_hash == graph.structure_hash
    assert [one.name for one in placement.variants] == ["1 micro-batch", "2 micro-batches"]
    assert placement.single_device_seconds == pytest.approx(0.401, rel=1e-4)
    assert placement.step_seconds < 0.3
    run = of.model_copy(update={"job": decision.variant.job})
    for spec in rank_specs(run, placement, decision.placement_file, decision.graph_file):
        assert (spec.accumulate, spec.shards) == (2, 1)
    servers.asked.clear()
    said.clear()
    assert await decided(of, servers, tmp_path, said) == decision
    assert servers.asked == [] and "solve: strict, from the cache" in said


@pytest.mark.slow
async def test_all_sharings_and_one_rail_are_compared_for_the_variant(tmp_path: Path) -> None:
    document = plan_document(2)
    document["job"] |= {"batch": 2, "accumulate": "auto"}
    document["solve"] = {"engine": "heft", "time_limit": "60s"}
    document["network"] = {"sharing": "auto"}
    decision = await decided(plan(document), Cutting(), tmp_path, [])
    own = decision.placement.structure_hash
    assert cuts_of([decision.variant]) == [(2, 1)] and len(decision.considered) == 5
    assert all(one.structure_hash == own for one in decision.compared)
    assert all(len(one.variants) == 2 for one in decision.considered)
    assert decision.one_rail is not None and decision.one_rail.variants == ()


@pytest.mark.thorough
async def test_real_programs_profile_and_decide(tmp_path: Path) -> None:
    document = plan_document(2)
    document["job"] |= {"batch": 4, "accumulate": "auto", "shards": "auto"}
    of, said = plan(document), list[str]()
    decision = await decide(of, Path("plan.yaml"), NoLauncher(), tmp_path, said.append)
    job = decision.variant.job
    assert isinstance(job, PlacedJob)
    notes = load_graph(decision.graph_file).notes
    assert (job.accumulate, job.shards) == (notes["accumulate"], notes["shards"])
    assert len(decision.placement.variants) == 5, "one micro-batch has no shards or replicas"
    document["job"]["model"] = "placewire.examples.models.resnet50:training_step_small"
    decision = await decide(plan(document), Path("plan.yaml"), NoLauncher(), tmp_path, said.append)
    assert cuts_of([decision.variant]) == [(1, 1)] and decision.placement.variants == ()
    assert any("normalises over the batch" in line for line in said)


def test_evaluate_takes_one_number(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "m:f", "--batch", "8", "--small-batches", "1", "2", "--devices", "2"]
    words += ["--device-memory", "1GiB", "--out", "o"]
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--accumulate", "1", "2"])
    assert stopped.value.code == 2
    assert "unrecognized arguments: 2" in capsys.readouterr().err
