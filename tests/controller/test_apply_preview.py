"""Applying a preview makes its changes or none, whatever happens to a server after the comparison.

Agents are real keepers in memory; deciding, and what follows staging, are stood in for.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import placewire.controller.apply as apply_module
from placewire.agent.contract.messages import Stage
from placewire.controller.agents.agents import Agents
from placewire.controller.apply import apply
from placewire.controller.change.change import preview
from placewire.controller.errors import StalePreview
from placewire.controller.launch.launcher import NoLauncher
from placewire.controller.records.journal import Journal
from placewire.controller.show.story import Show
from placewire.controller.story.preview_file import preview_of
from placewire.controller.story.proposal import Proposal
from placewire.controller.story.tools import ApplyRequest, Tools
from tests.controller.plans import plan, plan_document
from tests.controller.story.test_recovery import NEW, OLD, Cluster, MemoryAgents, Mortal, keep
from tests.paths import ROOT

DOCUMENT = plan_document(3, name="test-plan") | {"network": {"on_exit": "keep"}}


class Interfered(MemoryAgents):
    """before_staging: called once, right before the first server stages."""

    before_staging: Callable[[], Any] | None = None

    async def ask_all(
        self, requests: Mapping[str, Any], reply_type: type, timeout_seconds: float
    ) -> dict[str, Any]:
        if isinstance(next(iter(requests.values())), Stage) and self.before_staging is not None:
            self.before_staging()
        return await super().ask_all(requests, reply_type, timeout_seconds)


class Previewed:
    """A preview of a change from OLD to NEW, and its apply."""

    def __init__(self, folder: Path, journal: Journal, patch: pytest.MonkeyPatch) -> None:
        self.cluster, self.journal = Cluster(folder, journal), journal
        asyncio.run(keep(self.cluster, Mortal(None), OLD))
        self.agents = Interfered(self.cluster.keepers, Mortal(None))
        self.confirming: Callable[[], Any] = lambda: None
        decision = SimpleNamespace(allocation=None, predicted_step_seconds=None)

        async def propose(*_: Any) -> Proposal:
            desired = self.cluster.desired(NEW)
            shown = await preview(cast(Agents, self.agents), desired)
            return Proposal(cast(Any, decision), desired, shown)

        async def nothing(*_: Any, **__: Any) -> tuple[()]:
            return ()

        for name, stand_in in (
            ("propose", propose), ("end_left_ranks", nothing), ("delivered", nothing),
            ("make_report", lambda *_, **__: SimpleNamespace()),
        ):  # fmt: skip
            patch.setattr(apply_module, name, stand_in)
        patch.setattr(Show, "report", lambda *_: None)
        self.file = preview_of(DOCUMENT, ROOT / "small.yaml", asyncio.run(propose()))

    def apply(self) -> None:
        async def confirm() -> bool:
            self.confirming()
            return True

        show = Show()
        show.console.file = io.StringIO()
        folder = self.cluster.worlds["s1"].directory
        tools = Tools(cast(Agents, self.agents), self.journal, NoLauncher(), folder, folder, show)
        request = ApplyRequest(
            plan(DOCUMENT), folder / "plan.yaml", True, confirm, self.file, measured=False
        )
        asyncio.run(apply(request, tools, lambda _: None))

    def taken_away(self) -> None:
        """Somebody with `agent restore` on s2."""
        self.cluster.keepers["s2"].destroy("test-plan")


@pytest.fixture
def previewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Previewed]:
    with Journal.open(tmp_path / "journal") as journal:
        yield Previewed(tmp_path, journal, monkeypatch)


def test_what_was_shown_is_made(previewed: Previewed) -> None:
    previewed.apply()
    assert previewed.cluster.in_force() == {str(NEW)}


def test_what_changes_while_the_question_stands_is_seen_before_staging(
    previewed: Previewed,
) -> None:
    previewed.confirming = previewed.taken_away
    with pytest.raises(StalePreview, match="nothing was changed") as caught:
        previewed.apply()
    assert [*caught.value.differing] == ["s2"]
    assert previewed.cluster.in_force() == {"", str(OLD)}
    assert len(previewed.journal.decisions()) == 1, "nothing was staged"


def test_what_changes_at_the_last_moment_is_restored_and_told(previewed: Previewed) -> None:
    previewed.agents.before_staging = previewed.taken_away
    with pytest.raises(StalePreview, match="every server is put back") as caught:
        previewed.apply()
    assert [*caught.value.differing] == ["s2"]
    assert previewed.cluster.in_force() == {"", str(OLD)}
    assert previewed.journal.decisions()[-1].last_phase == "restored"
