"""Which of Open vSwitch's datapaths the network tests use, and how slow the machine is.

PLACEWIRE_DATAPATH        netdev (the default) or system, which needs the kernel's module
PLACEWIRE_TEST_PATIENCE   how many times longer than usual tests wait, for a slow (emulated)
                          processor; no assertion of a test depends on it
"""

from __future__ import annotations

import os

import pytest

from placewire.agent.contract.entries import DatapathType

DATAPATH: DatapathType = (
    "system" if os.environ.get("PLACEWIRE_DATAPATH", "netdev") == "system" else "netdev"
)
PATIENCE = float(os.environ.get("PLACEWIRE_TEST_PATIENCE", "1"))

only_netdev = pytest.mark.skipif(
    DATAPATH != "netdev", reason="about classifiers, which only the userspace datapath needs"
)
only_system = pytest.mark.skipif(
    DATAPATH != "system", reason="needs the kernel datapath: make test-kernel"
)
