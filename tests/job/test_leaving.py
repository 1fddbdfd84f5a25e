"""Egress check: is a peer refused that is not reached through its rail?"""

from __future__ import annotations

import pytest

from placewire.job.contract.specification import RailInterface
from placewire.job.errors import JobError
from placewire.job.transport.egress import require_on_rails


def rail(address: str, *peers: str) -> RailInterface:
    return RailInterface(rail="a", interface="pw-nic0", address=address, peers=peers)


def test_a_peer_on_its_own_rail() -> None:
    require_on_rails([rail("10.7.0.1"), rail("127.0.0.1", "127.0.0.2", "127.0.0.3")])


@pytest.mark.parametrize("peer", ["127.0.0.2", "255.255.255.255"])
def test_a_peer_that_another_way_leads_to_or_none(peer: str) -> None:
    leaves = "127.0.0.1" if peer.startswith("127.") else "nowhere"
    with pytest.raises(JobError, match=f"to {peer} leave from {leaves}, not from 10.7.0.1") as why:
        require_on_rails([rail("10.7.0.1", peer)])
    assert f"ip route get {peer}" in (why.value.remedy or "")
