"""Which texts of addresses and routes may be put back as arguments of `ip`."""

from __future__ import annotations

import pytest

from placewire.agent.reconcile.command_words import interfaces_of, is_a_route, is_an_address


@pytest.mark.parametrize(
    "route",
    [
        "default via 10.7.0.254 dev nic0",
        "10.50.0.0/16 via 10.7.0.254 dev eth0.100 proto static src 10.7.0.1 metric 50 onlink",
        "10.7.0.0/24 dev enp65s0f0np0 proto kernel scope link src 10.7.0.1",
        "10.8.0.0/24 dev br-x+@ table vrf-red proto 18 scope 253 tos lowdelay realm 7/cosmos",
        "10.8.0.9 via inet6 fe80::1 dev nic0 mtu lock 1400 advmss 1300 rtt 10ms rto_min 5ms",
        "default dev nic0 features ecn congctl bbr quickack 1 initcwnd 10 window 4096",
        "local 10.7.0.0/25 dev nic0 table 100 congctl lock cubic features ecn tcp_usec_ts",
        "multicast 224.0.0.0/4 dev nic0 scope link",
        "fd00::/64 dev nic0 proto kernel metric 256 pref medium",
        "::/0 via fe80::1 dev nic0 src fd00::1 metric 1024 hoplimit 9 pref high",
    ],
)
def test_a_route_that_ip_prints_for_a_nic_is_one(route: str) -> None:
    assert is_a_route(route)
    assert len(interfaces_of(route)) == 1


@pytest.mark.parametrize(
    "words",
    [
        "oif mgmt", "nexthop via 10.9.0.1 dev mgmt", "nhid 7", "encap mpls 7", "vrf red",
        "to 10.9.0.0/16", "via link oif mgmt", "features oif mgmt", "mtu oif mgmt", "weight 2",
        "src oif mgmt", "via inet oif mgmt", "proto", "metric lock", "metric lock 5",
        "quickack lock 1", "rto_min lock 5ms", "expires 0", "from fd00::/64", "\noif mgmt",
        "--", "-force",
    ],
)  # fmt: skip
def test_a_route_with_any_other_word_is_none(words: str) -> None:
    assert is_a_route("10.50.0.0/16 dev nic0")
    assert not is_a_route(f"10.50.0.0/16 dev nic0 {words}")
    assert not is_a_route(f"{words} 10.50.0.0/16 dev nic0")


@pytest.mark.parametrize(
    "address",
    [
        "10.7.0.1/24", "10.7.0.1/24 broadcast 10.7.0.255 scope global label nic0:1 metric 100",
        "10.7.0.1 peer 10.7.0.2/32 scope global",
        "10.7.0.1/24 scope global label nic0 noprefixroute", "fd00::1/64 scope global dynamic",
        "fd00::1/64 scope 0 metric 70 noprefixroute nodad home autojoin preferred_lft 0",
        "10.7.0.1/24 scope global label nic0 preferred_lft 0",
    ],
)  # fmt: skip
def test_an_address_that_ip_prints_for_a_nic_is_one(address: str) -> None:
    assert is_an_address(address)
    assert not is_an_address(f"{address} dev mgmt")
    assert not is_an_address(f"{address} temporary")
