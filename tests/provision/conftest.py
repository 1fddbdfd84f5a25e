"""Tests that take a machine and many minutes are collected only by `make test-provision`."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("PLACEWIRE_TEST_PROVISION") else ["test_*.py"]
