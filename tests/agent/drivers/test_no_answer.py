"""Whoever applies steps learns that nothing answered, and need not ask again for each NIC."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewire.agent.drivers import command
from placewire.agent.drivers.server import Server
from placewire.agent.reconcile.effects import EffectError, NoAnswerError
from placewire.agent.reconcile.steps import EntryStep
from tests.agent.states import desired_state


@pytest.mark.parametrize("tool, kind", [("ovs-ofctl", NoAnswerError), ("ethtool", EffectError)])
def test_only_the_tools_of_the_switch_tell_that_it_hangs(
    tool: str, kind: type[EffectError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / tool).write_text("#!/bin/sh\nexec /bin/sleep 9\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(command, "TIMEOUT_SECONDS", 0.05)
    with pytest.raises(EffectError, match=f"{tool} nic0: no answer") as raised:
        command.run([tool, "nic0"])
    assert raised.type is kind


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
