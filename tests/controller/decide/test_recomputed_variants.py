"""Where a device cannot hold a step, the same with layers computed again is profiled, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placewire.controller.compile.ranks import rank_specs
from placewire.controller.decide.variants import Variant
from placewire.controller.errors import OutOfMemory, PlanError
from placewire.controller.launch.programs import Ended
from placewire.controller.plan.job import PlacedJob
from tests.controller.decide.test_variants import Asking, Cutting, decided
from tests.controller.plans import plan, plan_document


def recomputed_of(variants: Sequence[Variant]) -> list[Any]:
    return [
        (one.job.accumulate, one.job.recompute)
        for one in variants
        if isinstance(one.job, PlacedJob)
    ]


# More than the device of a plan of the tests has.
TOO_LARGE = {"none": 1 << 40, "half": 1 << 40}


async def test_recomputation_is_tried_where_a_device_cannot_hold_the_step(tmp_path: Path) -> None:
    asking = Asking(tmp_path, accumulate=2)
    asking.servers.bytes_of = TOO_LARGE
    found = await asking()
    every = [(2, "none"), (2, "half"), (2, "all")]
    assert asking.servers.recomputed == every == recomputed_of(found)
    assert asking.servers.quickly == [(2, 1)] * 2, "the first is measured well at once"
    assert [line for line in asking.said if line.startswith("variant")] == [
        "variant: 2 micro-batches, half of the layers recomputed",
        "variant: 2 micro-batches, all layers recomputed",
    ]
    both = Asking(tmp_path / "both")
    both.cache.mkdir()
    both.servers.bytes_of = TOO_LARGE
    assert recomputed_of(await both()) == [
        (count, which) for count in (1, 2, 4) for which in ("none", "half", "all")
    ]


@pytest.mark.parametrize("given", ["none", "half", "all"])
async def test_what_the_plan_says_of_recomputation_is_done(tmp_path: Path, given: str) -> None:
    asking = Asking(tmp_path, accumulate=2, recompute=given)
    asking.servers.bytes_of = dict.fromkeys(("none", "half", "all"), 1 << 40)
    assert recomputed_of(await asking()) == asking.servers.recomputed == [(2, given)]


KILLED = Ended(-9, b"", ())
NO_MEMORY = Ended(1, b"", ("torch.OutOfMemoryError: CUDA out of memory.",))


@pytest.mark.parametrize("ended", [KILLED, NO_MEMORY])
async def test_recomputation_is_tried_where_the_profile_has_no_memory(
    tmp_path: Path, ended: Ended
) -> None:
    asking = Asking(tmp_path, accumulate=2)
    asking.servers.failing_recomputed[2, "none"] = ended
    assert recomputed_of(await asking()) == [(2, "half"), (2, "all")]
    (told,) = [line for line in asking.said if line.startswith("left out: ")]
    assert "the profile" in told
    asking = Asking(tmp_path, accumulate=4)
    asking.servers.failing_recomputed = {(4, which): ended for which in ("none", "half", "all")}
    with pytest.raises(OutOfMemory):
        await asking()


async def test_a_model_without_layers_is_asked_for_them_once(tmp_path: Path) -> None:
    asking = Asking(tmp_path)
    asking.servers.bytes_of = TOO_LARGE
    said = "error: m: there are no layers, or leave out job.recompute"
    asking.servers.failing_recomputed[1, "half"] = Ended(3, b"", (said,))
    assert recomputed_of(await asking()) == [(1, "none"), (2, "none"), (4, "none")]
    assert asking.servers.recomputed == [(1, "none"), (1, "half"), (2, "none"), (4, "none")]
    (told,) = [line for line in asking.said if "there are no layers" in line]
    assert told.startswith("layers are not computed again: on s1, ")
    assert "not a valid plan" not in " ".join(asking.said), "the plan says nothing of layers"


async def test_a_step_that_needs_layers_and_has_none_lacks_memory(tmp_path: Path) -> None:
    asking = Asking(tmp_path, accumulate=2)
    asking.servers.failing_recomputed[2, "none"] = KILLED
    asking.servers.failing_recomputed[2, "half"] = Ended(3, b"", ("error: there are no layers",))
    with pytest.raises(OutOfMemory, match="taken as a lack of memory"):
        await asking()
    assert asking.servers.recomputed == [(2, "none"), (2, "half")]


async def test_a_plan_that_asks_for_layers_of_a_model_without_is_wrong(tmp_path: Path) -> None:
    asking = Asking(tmp_path, accumulate=2, recompute="all")
    said = "error: m: there are no layers, or leave out job.recompute"
    asking.servers.failing_recomputed[2, "all"] = Ended(3, b"", (said,))
    with pytest.raises(PlanError, match=r"job\.recompute: on s1, .* there are no layers"):
        await asking()


async def test_a_step_that_stays_whole_may_have_its_layers_recomputed(tmp_path: Path) -> None:
    asking = Asking(tmp_path)
    asking.servers.bytes_of = TOO_LARGE
    asking.servers.whole_batch = "norm normalises over the batch"
    every = [(1, "none"), (1, "half"), (1, "all")]
    assert recomputed_of(await asking()) == asking.servers.recomputed == every


@pytest.mark.slow
async def test_ranks_recompute_what_was_decided(tmp_path: Path) -> None:
    document = plan_document(2)
    document["job"] |= {"batch": 2, "accumulate": 1, "recompute": "auto"}
    document["solve"] = {"engine": "heft", "time_limit": "60s"}
    of, servers = plan(document), Cutting()
    servers.failing_recomputed[1, "none"] = KILLED
    servers.failing_recomputed[1, "half"] = KILLED
    decision = await decided(of, servers, tmp_path, [])
    assert recomputed_of([decision.variant]) == [(1, "all")]
    assert servers.recomputed[-2:] == [(1, "all")] * 2 and servers.quickly == [(1, 1)]
    run = of.model_copy(update={"job": decision.variant.job})
    files = decision.placement_file, decision.graph_file
    assert all(one.recompute == "all" for one in rank_specs(run, decision.placement, *files))
