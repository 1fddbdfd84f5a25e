"""An agent that has news says hello again at once, and no request is lost by it."""

from __future__ import annotations

from pathlib import Path

import pytest

import placewire.controller.agents.agent_connections
from placewire.agent.connection.controller_connection import ControllerConnection
from placewire.agent.contract.messages import ReadBack, ReadBackResult
from tests.controller.agents.link_site import (
    GENERATION,
    PATIENCE_SECONDS,
    Site,
    patient_site,
    until,
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    # Longer than the test has patience: a poll that nothing ends.
    monkeypatch.setattr(placewire.controller.agents.agent_connections, "POLL_SECONDS", 600.0)
    monkeypatch.setattr(
        placewire.agent.connection.controller_connection,  # type: ignore[attr-defined]
        "POLL_SECONDS",
        600.0,
    )
    return patient_site(tmp_path, monkeypatch)


def link_of(site: Site) -> ControllerConnection:
    assert site.agent._link is not None
    return site.agent._link


async def test_the_controller_has_the_news_at_once(site: Site) -> None:
    async with site.linked() as agents:
        link, said = link_of(site), agents.hello["s1"]
        await until(lambda: agents._link.conversations["s1"].open_polls)
        now = said.capabilities.model_copy(update={"gpus_unread": True})
        link._hello = lambda: said.model_copy(update={"capabilities": now})
        link.greet_again()
        link.greet_again()
        await until(lambda: agents.hello["s1"].capabilities.gpus_unread)
        asked = ReadBack(generation=GENERATION)
        assert await agents.ask("s1", asked, ReadBackResult, PATIENCE_SECONDS)


async def test_a_request_under_way_is_done_once_and_answered(site: Site) -> None:
    seen: list[str] = []

    def on_request(request: str) -> None:
        seen.append(request)
        link_of(site).greet_again()

    site.agent.on_request = on_request
    async with site.linked() as agents:
        before = agents._link.conversations["s1"].session
        asked = ReadBack(generation=GENERATION)
        assert await agents.ask("s1", asked, ReadBackResult, PATIENCE_SECONDS)
        await until(lambda: agents._link.conversations["s1"].session != before)
        assert seen == ["read_back"]
