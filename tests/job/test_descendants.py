"""Ends what a script left behind, whatever other processes of the machine are called."""

from __future__ import annotations

import subprocess
import sys

from placewire.job.script.descendants import descendants

# Any user can give a process a name that is no UTF-8.
_NAMED = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, b"\\xff\\xfe) Z 1", 0, 0, 0)
print(flush=True)
sys.stdin.read()
"""


def test_a_process_with_a_name_of_any_bytes_is_found_with_its_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as named:
        assert named.stdout is not None and named.stdout.readline() == b"\n"
        assert named.pid in descendants()
        named.communicate()
