"""What is advised where a plan does not say how ranks start can be followed by root, too."""

from __future__ import annotations

import pytest

from placewire.controller.errors import UsageError
from placewire.controller.launch.launcher import NoLauncher
from tests.controller.plans import plan, plan_document


def test_the_advice_is_a_launch_section_that_names_its_user() -> None:
    """Without a name, root's ranks are refused."""
    with pytest.raises(UsageError, match="does not say how") as refused:
        NoLauncher().require_ready()
    assert "`launch: {kind: ssh, user: NAME}`" in refused.value.remedy
    assert plan({**plan_document(2), "launch": {"kind": "ssh", "user": "NAME"}}).launch is not None
