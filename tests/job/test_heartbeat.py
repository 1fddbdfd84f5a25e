"""Heartbeats of other ranks, as the thread that watches them sees them."""

from __future__ import annotations

from typing import Any

from placewire.job.contract.specification import Failed, RankSpec
from placewire.job.supervision.heartbeat import Heart


class Growing(dict[int, str]):
    """What was seen, to which the other thread adds rank 2 while somebody looks at rank 1."""

    def __getitem__(self, peer: int) -> str:
        self[2] = "1"
        return super().__getitem__(peer)

    def get(self, peer: int, default: Any = None) -> Any:
        self[2] = "1"
        return super().get(peer, default)


def test_a_rank_that_is_seen_first_while_others_are_watched_ends_no_watch() -> None:
    spec = RankSpec(
        kind="placed", rank=0, world_size=3, device="s1/0", master_address="127.0.0.1",
        master_tcp_port=1, rail_interfaces=(), placement_file="", steps=1, loss_seconds=0.8,
    )  # fmt: skip
    lost: list[Failed] = []
    heart = Heart(spec, lost.append)
    heart._seen = Growing({1: "1"})
    heart._watch()
    assert len(lost) == 1
