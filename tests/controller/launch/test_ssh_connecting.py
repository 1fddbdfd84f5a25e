"""What paramiko's errors mean."""

from __future__ import annotations

import paramiko
import pytest

from placewire.controller.launch.ssh_connecting import tells_of_silence


@pytest.mark.parametrize(
    ("words", "passed_seconds", "is_silence"),
    [
        ("No existing session", 0.5, False),
        ("No existing session", 10.5, True),
        ("Error reading SSH protocol banner", 0.5, True),
        ("Authentication timeout.", 0.5, True),
        ("Authentication failed.", 30.0, False),
    ],
)
def test_a_server_that_hung_up_was_not_silent(
    words: str, passed_seconds: float, is_silence: bool
) -> None:
    assert tells_of_silence(paramiko.SSHException(words), passed_seconds, 10.0) is is_silence
