"""A script that end-to-end tests run on the servers of the lab, and what must come of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.end_to_end.cluster import SERVERS

SUMS = """
import importlib.util, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(500_000)
dist.all_reduce(x)
groups = sys.modules["placewire_every_nic"]._KEPT[-1]._groups
ours = importlib.util.find_spec("placewire") is not None
print("sums", sorted(set(x.tolist())), "NICs", len(next(iter(groups.values()))), "ours", ours)
dist.destroy_process_group()
"""


def require_that_sums_used_every_nic(
    output: str, report: dict[str, Any], *, ours: bool = True
) -> None:
    """ours: whether the script's interpreter has our packages."""
    said = set(re.findall(r"\[\d\] (sums .*)", output))
    assert said == {f"sums [{len(SERVERS)}.0] NICs 2 ours {ours}"}, output
    assert report["network"] == "restored"
    for server in SERVERS:
        sent = {row["nic"]: row["sent_bytes"] for row in report["rails"] if row["server"] == server}
        parts = {nic: of / sum(sent.values()) for nic, of in sent.items()}
        assert parts == pytest.approx({"nic0": 0.5, "nic1": 0.5}, abs=0.05), server
