"""The name of a signal that ended a process, for messages."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Returns the name, like SIGKILL; for a real-time signal, most of which have none, its
    number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
