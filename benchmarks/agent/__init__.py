"""The agent's figures, on the servers and labs that its tests are made of."""

from __future__ import annotations

import sys

from benchmarks.report import ROOT

# The tests' servers, faults and probes are no package.
sys.path.append(str(ROOT / "tests" / "agent"))
