"""Whoever applies steps learns that nothing answered, and need not ask again for each NIC."""

from __future__ import annotations

import pytest

from placewire.agent.drivers import command
from placewire.agent.drivers.server import Server
from placewire.agent.reconcile.effects import EffectError, NoAnswerError
from placewire.agent.reconcile.steps import EntryStep
from tests.agent.states import desired_state


def test_a_tool_that_hangs_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TIMEOUT_SECONDS", 0.05)
    with pytest.raises(NoAnswerError, match="sleep 9: no answer"):
        command.run(["sleep", "9"])


@pytest.mark.parametrize("kind", [EffectError, NoAnswerError])
def test_a_step_tells_whether_it_had_an_answer(
    kind: type[EffectError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise kind("the switch says so")

    monkeypatch.setattr(Server, "_apply_batch", fails)
    with pytest.raises(EffectError, match="says so") as raised:
        Server.__new__(Server).apply([EntryStep(None, desired_state(1).flows[0])], "plan")
    assert raised.type is kind
