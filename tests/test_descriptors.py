"""The limit of open files is raised, never lowered, and never above what the system allows."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from placewire.descriptors import raised_limit
now = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
most = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
assert raised_limit(8192) == now() == most
assert raised_limit(64) == now() == most
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
assert raised_limit(8192) == now() == 128
"""


def test_it_is_raised_as_far_as_it_may() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)
