"""What may be asked of the optimizer, by name: the one list of each, light enough for --help."""

from __future__ import annotations

from typing import Literal

Model = Literal["thesis", "contended"]
# What the network does with concurrent transfers; see docs/architecture.md, "Sharing".
#   strict    each server pair has its own rate per rail: the decision
#   even      strict with every pair's rate equal: each NIC split evenly over the other servers
#   unshaped  transfers share the NICs max-min fairly; there are no per-pair rates
Sharing = Literal["strict", "even", "unshaped"]
EngineName = Literal["auto", "heft", "single"]
ReductionName = Literal["auto", "fusion", "none"]
